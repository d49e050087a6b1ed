"""Run the components of a deployed stack, each with its own role.

ministack runs the functions. It has no containers, so the command of a task definition is run
as a process here, with the environment and the role of the task.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stack.deployment import DeployedStack, get_client
from support.cli.commands import clean_env, start

if TYPE_CHECKING:
    from support.ministack_server import Ministack

RECORDER = Path(__file__).parent / "recorder"


def make_server_settings(calls: Path, **variables: str) -> dict[str, str]:
    """Return the environment of ministack: policies are enforced, and calls recorded.

    Its functions inherit the other variables, which the templates leave to their defaults.
    """
    return {
        "AUTH": "true",
        "AWS_CALLS_FOLDER": str(calls),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(RECORDER), os.getenv("PYTHONPATH")])),
        **variables,
    }


@contextmanager
def run_task(
    stack: DeployedStack, folder: Path, calls: Path, *words: str, **more: str
) -> Iterator["subprocess.Popen[bytes]"]:
    """Run the container of a stack's task as a process. If it still runs, end it with SIGTERM.

    `folder` is its volume. `words` are added to its command, and `more` to its environment.
    """
    task = describe_task(stack)
    (container,) = task["containerDefinitions"]
    env = {each["name"]: each["value"] for each in container["environment"]}
    env = {name: value.replace("/scratch", str(folder)) for name, value in env.items()}
    recording = {**make_server_settings(calls), "AWS_CALLS_COMPONENT": task["family"]}
    free_port = {"--metrics-port=9000": "--metrics-port=0"}
    command = [free_port.get(word, word) for word in container["command"]]
    role = assume_role(stack.server, task["taskRoleArn"])
    log_path = folder / f"{task['family']}.log"
    with log_path.open("wb") as log:
        process = start(
            folder,
            *command,
            *words,
            env=clean_env(**{**stack.server.env, **role, **recording, **env, **more}),
            stderr=log,
        )
    try:
        yield process
        if process.poll() is None:
            process.terminate()
            process.communicate(timeout=60)
            assert process.returncode == 0, log_path.read_text()
    finally:
        process.kill()
        process.communicate()


def describe_task(stack: DeployedStack) -> Any:
    """Return the task definition of a stack as ECS describes it."""
    ecs = get_client(stack.server, "ecs")
    response = ecs.describe_task_definition(taskDefinition=stack.resources["Task"])
    return response["taskDefinition"]


def assume_role(server: "Ministack", arn: str) -> dict[str, str]:
    """Return the credentials that ECS would give to a task of that role.

    Only ECS may assume it, so its trust policy is extended to this account first.
    """
    root = {"AWS": arn.replace(":role/" + arn.rpartition("/")[2], ":root")}
    statement = {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": root}
    get_client(server, "iam").update_assume_role_policy(
        RoleName=arn.rpartition("/")[2],
        PolicyDocument=json.dumps({"Version": "2012-10-17", "Statement": [statement]}),
    )
    sts = get_client(server, "sts")
    given = sts.assume_role(RoleArn=arn, RoleSessionName="task")["Credentials"]
    return {
        "AWS_ACCESS_KEY_ID": given["AccessKeyId"],
        "AWS_SECRET_ACCESS_KEY": given["SecretAccessKey"],
        "AWS_SESSION_TOKEN": given["SessionToken"],
    }
