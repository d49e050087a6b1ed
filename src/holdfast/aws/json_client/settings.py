"""Operations, region, endpoint and credentials of a client, and when boto3 is used instead.

An operation is in the table if Holdfast calls it often and its response needs no model: it has
no timestamps, and its binary values can be recognised. All others are left to boto3.

Usually botocore finds them. Importing and asking it takes longer than everything else that a
Lambda function does before its first call. So if the environment says everything and nothing
unusual is configured, as in a Lambda function, the environment is read here.

Tools that mock, record or trace AWS calls replace functions of botocore. The lean client does
not call these functions, so a call would escape from a mock, or be missing in a trace.
"""

import os
import re
import sys
from collections.abc import Mapping
from types import FunctionType, MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import urlsplit


class Service(NamedTuple):
    """How requests to a service are addressed, and which of its operations are made here."""

    target_prefix: str
    host_prefix: str  # also the name in signatures
    endpoint_variable: str
    operations: frozenset[str]  # by boto3's method names
    headers: Mapping[str, str] = MappingProxyType({})


# Repeating these is within the contract of the queue. A message that was sent twice is
# delivered twice, as SQS itself may do; the other calls have the same effect again. Messages of
# a lost ReceiveMessage response become visible again when their timeout has passed.
_SQS = """
change_message_visibility change_message_visibility_batch delete_message delete_message_batch
get_queue_attributes get_queue_url receive_message send_message send_message_batch
"""

# Writes have conditions. If the first of two equal writes was done, the second is refused, and
# the adapter recognises its own write in the row that comes with the refusal.
_DYNAMODB = """
batch_get_item batch_write_item delete_item get_item put_item query scan transact_write_items
update_item
"""
_STEP_FUNCTIONS = "send_task_failure send_task_heartbeat send_task_success"

# A request of these is never sent again after its bytes may have arrived. A second
# SendTaskSuccess or SendTaskFailure would be refused because the first was accepted, and the
# job would count as failed.
NOT_REPEATABLE = frozenset({"send_task_failure", "send_task_success"})

# The parameter that makes a repeated request count once.
IDEMPOTENCY_PARAMETERS = {"transact_write_items": "ClientRequestToken"}

SERVICES = {
    "sqs": Service(
        "AmazonSQS",
        "sqs",
        "AWS_ENDPOINT_URL_SQS",
        frozenset(_SQS.split()),
        # SQS then adds the error code of its older protocol, which boto3 shows.
        headers={"x-amzn-query-mode": "true"},
    ),
    "dynamodb": Service(
        "DynamoDB_20120810",
        "dynamodb",
        "AWS_ENDPOINT_URL_DYNAMODB",
        frozenset(_DYNAMODB.split()),
    ),
    "stepfunctions": Service(
        "AWSStepFunctions",
        "states",
        "AWS_ENDPOINT_URL_SFN",
        frozenset(_STEP_FUNCTIONS.split()),
    ),
}


def name_operation(method: str) -> str:
    """Return the service's name of an operation, such as SendMessage for send_message."""
    return "".join(map(str.capitalize, method.split("_")))


# -- where a client finds its service

# The regions of the partitions aws, aws-us-gov and aws-cn, whose hosts have the same form.
_KNOWN_REGION = re.compile(r"((us|eu|ap|sa|ca|me|af|il|mx)|us-gov|cn)-[a-z]+-\d+")

# With one of these variables botocore decides, because it has more rules for them.
_UNUSUAL_VARIABLES = frozenset(
    {
        "AWS_ACCOUNT_ID_ENDPOINT_MODE",
        "AWS_AUTH_SCHEME_PREFERENCE",
        "AWS_CREDENTIAL_EXPIRATION",
        "AWS_CSM_ENABLED",
        "AWS_DATA_PATH",
        "AWS_DEFAULT_PROFILE",
        "AWS_ENDPOINT_DISCOVERY_ENABLED",
        "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS",
        "AWS_PROFILE",
        "AWS_SECURITY_TOKEN",
        "AWS_USE_DUALSTACK_ENDPOINT",
        "AWS_USE_FIPS_ENDPOINT",
        "BOTOCORE_EXPERIMENTAL__PLUGINS",
    }
)


_UNUSUAL_SETTINGS = (
    "auth_scheme_preference",
    "csm_enabled",
    "use_dualstack_endpoint",
    "use_fips_endpoint",
)


class ClientSettings(NamedTuple):
    """What a client needs to know. botocore has the credentials if there are none here."""

    credentials: "EnvironmentCredentials | None"
    region: str
    endpoint: str
    ca_bundle: str | None = None


class EnvironmentCredentials:
    """The credentials of the environment, which never change."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.access_key = environ["AWS_ACCESS_KEY_ID"]
        self.secret_key = environ["AWS_SECRET_ACCESS_KEY"]
        self.token = environ.get("AWS_SESSION_TOKEN") or None

    def __repr__(self) -> str:
        return "<EnvironmentCredentials>"  # without the keys

    def get_frozen_credentials(self) -> "EnvironmentCredentials":
        """Return the credentials, as botocore's refreshable ones do."""
        return self


def read_environment(
    service: str, region: str | None, endpoint: str | None, environ: Mapping[str, str]
) -> ClientSettings | None:
    """Return the settings if the environment alone decides them, otherwise None.

    `region` and `endpoint` are those of a queue's URL. A configured endpoint takes precedence.
    """
    region = region or environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")
    is_complete = (
        region and environ.get("AWS_ACCESS_KEY_ID") and environ.get("AWS_SECRET_ACCESS_KEY")
    )
    if not is_complete or any(name in environ for name in _UNUSUAL_VARIABLES):
        return None
    if _has_config_file(environ) or not _KNOWN_REGION.fullmatch(region or ""):
        return None
    assert region is not None
    variable = SERVICES[service].endpoint_variable
    configured = environ.get(variable) or environ.get("AWS_ENDPOINT_URL")
    url = configured or endpoint or make_endpoint(service, region)
    return ClientSettings(EnvironmentCredentials(environ), region, url)


def make_endpoint(service: str, region: str) -> str:
    """Return the service's usual endpoint in a region of a known partition."""
    ending = ".cn" if region.startswith("cn-") else ""
    return f"https://{SERVICES[service].host_prefix}.{region}.amazonaws.com{ending}"


def _has_config_file(environ: Mapping[str, str]) -> bool:
    """Return whether there is a file in which something may be configured."""
    paths = (
        environ.get("AWS_CONFIG_FILE") or "~/.aws/config",
        environ.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials",
    )
    return any(os.path.isfile(os.path.expanduser(path)) for path in paths)


def ask_botocore(
    session: Any, service: str, region: str | None, endpoint: str | None
) -> ClientSettings | None:
    """Return the settings that botocore has read, or None if only boto3 can follow them.

    Raises NoRegionError and botocore's other errors.
    """
    from botocore.exceptions import NoRegionError

    read = session.get_config_variable
    region = region or os.environ.get("AWS_REGION") or read("region")
    if not region:
        raise NoRegionError
    if not _KNOWN_REGION.fullmatch(region) or _needs_boto3(session):
        return None
    url = find_configured_endpoint(session, service) or endpoint
    url = url or make_endpoint(service, region)
    return ClientSettings(None, region, url, read("ca_bundle"))


def find_configured_endpoint(session: Any, service: str) -> str | None:
    """Return the endpoint that AWS_ENDPOINT_URL, a profile and so on name, or None."""
    from botocore.configprovider import ConfiguredEndpointProvider

    if session.get_config_variable("ignore_configured_endpoint_urls"):
        return None
    profile = session.get_scoped_config()
    configured = ConfiguredEndpointProvider(session.full_config, profile, service).provide()
    return configured or None


def _needs_boto3(session: Any) -> bool:
    """Return whether something is configured that the lean client does not do."""
    read = session.get_config_variable
    return (
        any(map(read, _UNUSUAL_SETTINGS))
        or str(read("endpoint_discovery_enabled")).lower() == "true"
        or read("account_id_endpoint_mode") == "required"
        or "proxy_client_cert" in session.get_scoped_config()
        or bool(os.environ.get("BOTOCORE_EXPERIMENTAL__PLUGINS"))
    )


def can_be_called(endpoint: str) -> bool:
    """Return whether the lean client can call this endpoint, which needs no proxy."""
    parts = urlsplit(endpoint)
    return (
        parts.scheme in ("http", "https")
        and bool(parts.hostname)
        and parts.path in ("", "/")
        and not (parts.query or parts.fragment or parts.username)
        and not _has_proxy(endpoint)
    )


def _has_proxy(endpoint: str) -> bool:
    """Return whether the endpoint is called through a proxy, as HTTPS_PROXY and others say."""
    # On macOS the settings of the system count, too.
    has_variable = any(name.lower().endswith("_proxy") for name in os.environ)
    if not has_variable and sys.platform != "darwin":
        return False
    from urllib.request import getproxies, proxy_bypass  # slow to import

    parts = urlsplit(endpoint)
    return bool(getproxies().get(parts.scheme)) and not proxy_bypass(parts.netloc)


# -- mocks and tracing


def is_botocore_patched() -> bool:
    """Return whether calls of botocore are mocked or instrumented now.

    It is asked when a client is made and before each call, because tools come and go while a
    client exists. They replace the one function that every call goes through; moto has a
    switch of its own.
    """
    # These agents act when botocore is imported, which the lean client delays.
    if "ddtrace" in sys.modules or "newrelic" in sys.modules:
        return True
    if (module := sys.modules.get("botocore.client")) is not None:
        call = vars(module.BaseClient).get("_make_api_call")
        # botocore decorates it, so any module of its own will do.
        if type(call) is not FunctionType or not _is_botocores(call):
            return True
    stubber = getattr(sys.modules.get("moto.core.models"), "botocore_stubber", None)
    return bool(getattr(stubber, "enabled", False))


def _is_botocores(function: FunctionType) -> bool:
    return str(function.__globals__["__name__"]).startswith("botocore.")
