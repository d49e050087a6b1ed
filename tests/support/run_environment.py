"""Make a test run independent of the shell, the machine and the settings it is started from.

`conftest.py` calls this before any test module, and so before boto3, is imported.
"""

import os
import signal

# Settings of the tests themselves.
_OUR_OWN = ("HOLDFAST_CHAOS_SECONDS", "HOLDFAST_CHAT_SEEDS")
_FOREIGN = ("AWS_", "HOLDFAST_", "OPENAI_", "TWILIO_", "STEP_FUNCTIONS_", "SQS_", "WORKER_")
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")
_SETTINGS = {
    # Without these, boto3 reads the profile of the person at the machine, or asks for the
    # credentials of the machine.
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_EC2_METADATA_DISABLED": "true",
    # ministack opens these two on all addresses of the machine.
    "IOT_MTLS_ENABLED": "0",
    "SFTP_ENABLED": "0",
}
_SIGNALS = (signal.SIGCHLD, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)


def isolate() -> None:
    """Forget foreign settings, and start children with the default signal handlers."""
    _clear_environment()
    _hand_down_default_signals()


def _clear_environment() -> None:
    for name in list(os.environ):
        is_foreign = name.startswith(_FOREIGN) or name.lower() in _PROXIES
        if is_foreign and name not in _OUR_OWN:
            del os.environ[name]
    os.environ.update(_SETTINGS)


def _hand_down_default_signals() -> None:
    """Ignore by a handler what this process was started to ignore.

    A background job of a shell ignores SIGINT, and one of nohup SIGHUP. A child would inherit
    that, and a test that sends it the signal would wait in vain. A handler is not inherited.
    """
    for number in _SIGNALS:
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
