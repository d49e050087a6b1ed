"""Region, endpoint and credentials of a client, as boto3 would choose them.

Usually botocore finds them. Importing and asking it takes longer than everything else that a
Lambda function does before its first call. So if the environment says everything and nothing
unusual is configured, as in a Lambda function, the environment is read here.
"""

import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from holdfast.aws.json_client.operations import SERVICES
from holdfast.aws.json_client.transport import find_proxy

# The regions of the partition "aws"; botocore's partitions.json has the same pattern.
_COMMON_REGION = re.compile(r"(us|eu|ap|sa|ca|me|af|il|mx)-\w+-\d+")

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


class ClientSettings(NamedTuple):
    """What a client needs to know. botocore has the credentials if there are none here."""

    credentials: "EnvironmentCredentials | None"
    region: str
    endpoint: str
    signing_region: str
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
    if _has_config_file(environ) or not _COMMON_REGION.fullmatch(region or ""):
        return None
    assert region is not None
    variable = SERVICES[service].endpoint_variable
    configured = environ.get(variable) or environ.get("AWS_ENDPOINT_URL")
    url = configured or endpoint
    url = url or f"https://{SERVICES[service].host_prefix}.{region}.amazonaws.com"
    credentials = EnvironmentCredentials(environ)
    return ClientSettings(credentials, region, url, region)


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
    """Return the settings that botocore chooses, or None if only boto3 can follow them.

    Raises NoRegionError and botocore's other errors.
    """
    from botocore.configprovider import ConfiguredEndpointProvider
    from botocore.endpoint_provider import EndpointProvider
    from botocore.exceptions import NoRegionError
    from botocore.utils import validate_region_name

    read = session.get_config_variable
    region = region or os.environ.get("AWS_REGION") or read("region")
    if not region:
        raise NoRegionError
    validate_region_name(region)
    if _needs_boto3(session, region):
        return None
    configured = None
    if not read("ignore_configured_endpoint_urls"):
        configured = ConfiguredEndpointProvider(
            session.full_config, session.get_scoped_config(), service
        ).provide()
    loader = session.get_component("data_loader")
    # By its path, because botocore would look into the folders of all services for the version.
    rules = loader.load_data(f"{service}/{SERVICES[service].api_version}/endpoint-rule-set-1")
    chosen = configured or endpoint
    resolved = EndpointProvider(rules, loader.load_data("partitions")).resolve_endpoint(
        Region=region,
        UseFIPS=bool(read("use_fips_endpoint")),
        UseDualStack=bool(read("use_dualstack_endpoint")),
        **({"Endpoint": chosen} if chosen else {}),
    )
    [scheme, *_] = resolved.properties.get("authSchemes") or [{"name": "sigv4"}]
    if scheme["name"] != "sigv4":
        return None
    signing_region = scheme.get("signingRegion", region)
    return ClientSettings(None, region, resolved.url, signing_region, read("ca_bundle"))


def _needs_boto3(session: Any, region: str) -> bool:
    """Return whether something is configured that the lean client does not do."""
    read, profile = session.get_config_variable, session.get_scoped_config()
    return (
        "fips" in region  # an old way to ask for such endpoints
        or region.startswith("aws-")
        or bool(read("csm_enabled"))
        or str(read("endpoint_discovery_enabled")).lower() == "true"
        or read("account_id_endpoint_mode") == "required"
        or bool(read("auth_scheme_preference"))
        or "proxy_client_cert" in profile
        or bool(os.environ.get("BOTOCORE_EXPERIMENTAL__PLUGINS"))
    )


def can_be_called(endpoint: str) -> bool:
    """Return whether the lean client can call this endpoint, if need be through its proxy."""
    parts, proxy = urlsplit(endpoint), find_proxy(endpoint)
    return (
        parts.scheme in ("http", "https")
        and bool(parts.hostname)
        and parts.path in ("", "/")
        and not (parts.query or parts.fragment or parts.username)
        and (proxy is None or proxy.startswith("http://"))
    )
