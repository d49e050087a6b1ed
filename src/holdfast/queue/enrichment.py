"""The message of the queue manager's design document."""

from holdfast.queue.message import QueueMessage


class EnrichmentMessage(QueueMessage):
    """A company's website that a scraper found, and that a worker is to enrich."""

    domain: str
    company_slug: str
    campaign_name: str
