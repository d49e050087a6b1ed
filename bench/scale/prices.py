"""What AWS charges, as published for us-east-1. Other pages take their prices from here.

The figures are from copies of aws.amazon.com/SERVICE/pricing (of DynamoDB: on demand), as of
June 2026. AWS changes its prices, and other regions differ by up to 30 %, so check them before
you plan a budget. Free tiers and discounts are left out.
"""

from collections.abc import Mapping
from dataclasses import dataclass

REGION = "us-east-1"
AS_OF = "2026-06"


@dataclass(frozen=True, slots=True)
class Price:
    """The price of `per` units, in US dollars."""

    dollars: float
    per: float
    unit: str

    def compute_cost(self, units: float) -> float:
        """Return the price of so many units."""
        return units * self.dollars / self.per


PRICES: Mapping[str, Price] = {
    "sqs.request": Price(0.40, 1e6, "requests"),
    "dynamodb.write": Price(0.625, 1e6, "write request units"),
    "dynamodb.read": Price(0.125, 1e6, "read request units"),
    "lambda.request": Price(0.20, 1e6, "invocations"),
    "lambda.gb_second": Price(0.0000166667, 1, "GB-seconds, x86"),
    "fargate.vcpu_hour": Price(0.04048, 1, "vCPU-hours, Linux x86"),
    "fargate.gb_hour": Price(0.004445, 1, "GB-hours"),
    "fargate.storage_gb_hour": Price(0.000111, 1, "GB-hours of storage above 20 GB"),
    "states.transition": Price(0.025, 1e3, "state transitions, standard"),
    "s3.put": Price(0.005, 1e3, "PUT requests"),
}


def compute_costs(units: Mapping[str, float]) -> dict[str, float]:
    """Return the cost of each kind of unit. Raises KeyError for a unit without a price."""
    return {name: PRICES[name].compute_cost(count) for name, count in units.items()}
