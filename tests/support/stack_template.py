"""Reads the templates of infra/ as CloudFormation does, as far as our tests need it.

The SAM transform is that of AWS. Conditions are evaluated, and functions of parameters are
replaced by their values. An attribute that AWS would choose becomes a text such as `Queue.Arn`,
so that references can be compared.
"""

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import boto3
import yaml
from samtranslator.parser.parser import Parser
from samtranslator.translator.translator import Translator

from support.paths import ROOT

FOLDER = ROOT / "infra"
PSEUDO_PARAMETERS = {
    "AWS::Partition": "aws",
    "AWS::Region": "eu-west-1",
    "AWS::AccountId": "123456789012",
    "AWS::StackName": "stack",
}
_NO_VALUE = object()


class _TemplateLoader(yaml.SafeLoader):
    """Reads !Ref and the other short forms as the long form."""


def _construct(loader: _TemplateLoader, suffix: str, node: yaml.Node) -> Any:
    name = suffix if suffix in ("Ref", "Condition") else f"Fn::{suffix}"
    match node:
        case yaml.ScalarNode() if suffix == "GetAtt":
            value: Any = node.value.split(".", 1)
        case yaml.ScalarNode():
            value = loader.construct_scalar(node)
        case yaml.SequenceNode():
            value = loader.construct_sequence(node, deep=True)
        case _:
            value = loader.construct_mapping(node, deep=True)
    return {name: value}


_TemplateLoader.add_multi_constructor("!", _construct)


def read_template(name: str) -> dict[str, Any]:
    """Return the template of that name as it is written, with the long form of functions."""
    return yaml.load((FOLDER / f"{name}.yaml").read_text(), _TemplateLoader)


@cache
def load_template(name: str) -> dict[str, Any]:
    """Return the template of that name as CloudFormation sees it, after the SAM transform."""
    session = boto3.Session(region_name=PSEUDO_PARAMETERS["AWS::Region"])
    translator = Translator({}, Parser(), boto_session=session)
    template = translator.translate(read_template(name), parameter_values={})
    return json.loads(json.dumps(template))


class Stack:
    """A template with the values of its parameters. `resources` has what would be created."""

    def __init__(self, template: Mapping[str, Any], **parameters: str) -> None:
        self._template = template
        self._values: dict[str, Any] = {
            name: parameters.get(name, parameter.get("Default", f"<{name}>"))
            for name, parameter in template["Parameters"].items()
        } | PSEUDO_PARAMETERS
        self.resources: dict[str, dict[str, Any]] = {
            name: self.resolve(resource)
            for name, resource in template["Resources"].items()
            if "Condition" not in resource or self._is_true(resource["Condition"])
        }

    def find(self, kind: str) -> dict[str, dict[str, Any]]:
        """Return the properties of the resources of that type, such as AWS::SQS::Queue."""
        return {
            name: resource["Properties"]
            for name, resource in self.resources.items()
            if resource["Type"] == kind
        }

    def list_broken_rules(self) -> list[str]:
        """Return the assertions for which CloudFormation would refuse the parameters."""
        return [
            assertion["AssertDescription"]
            for rule in self._template.get("Rules", {}).values()
            if "RuleCondition" not in rule or self._is_true(rule["RuleCondition"])
            for assertion in rule["Assertions"]
            if not self._is_true(assertion["Assert"])
        ]

    def resolve(self, value: Any) -> Any:
        """Return the value with every function in it replaced."""
        match value:
            case {"Ref": str(name)}:
                return _NO_VALUE if name == "AWS::NoValue" else self._values.get(name, name)
            case {"Fn::GetAtt": [*path]}:
                return self._get_attribute(".".join(path))
            case {"Fn::Sub": str(text)}:
                return re.sub(r"\$\{([^}]+)\}", lambda m: self._substitute(m[1]), text)
            case {"Fn::FindInMap": [name, *keys]}:
                found = self._template["Mappings"][name]
                for key in keys:
                    found = found[self.resolve(key)]
                return found
            case {"Fn::Join": [separator, parts]}:
                return separator.join(self.resolve(parts))
            case {"Fn::If": [condition, yes, no]}:
                return self.resolve(yes if self._is_true(condition) else no)
            case dict():
                pairs = ((key, self.resolve(part)) for key, part in value.items())
                return {key: part for key, part in pairs if part is not _NO_VALUE}
            case list():
                parts = (self.resolve(part) for part in value)
                return [part for part in parts if part is not _NO_VALUE]
        return value

    def _substitute(self, name: str) -> str:
        if name in self._values:
            return str(self._values[name])
        return str(self._get_attribute(name)) if "." in name else name

    def _get_attribute(self, path: str) -> Any:
        """Return the name of a queue, which alarms use, and else the path itself."""
        resource, _, attribute = path.partition(".")
        if resource not in self._template["Resources"]:
            raise KeyError(f"{path}: the template has no resource {resource}")
        if attribute == "QueueName":
            return self.resolve(
                self._template["Resources"][resource]["Properties"]["QueueName"]
            )
        return path

    def _is_true(self, condition: Any) -> bool:
        match condition:
            case str(name):
                return self._is_true(self._template["Conditions"][name])
            case {"Fn::Equals": [left, right]}:
                return bool(self.resolve(left) == self.resolve(right))
            case {"Fn::Not": [part]}:
                return not self._is_true(part)
            case {"Fn::And": parts}:
                return all(map(self._is_true, parts))
            case {"Fn::Or": parts}:
                return any(map(self._is_true, parts))
            case {"Fn::EachMemberEquals": [texts, text]}:
                # CloudFormation splits the value of a list at its commas.
                return all(part == text for part in self.resolve(texts).split(","))
        raise ValueError(f"a condition that the tests do not know: {condition}")


def iter_references(value: Any) -> Iterator[str]:
    """Yield the name of each parameter or resource that a part of a template refers to."""
    match value:
        case {"Ref": str(name)} | {"Fn::GetAtt": [str(name), *_]}:
            yield name
        case {"Fn::Sub": str(text)}:
            yield from (name.partition(".")[0] for name in re.findall(r"\$\{([^}]+)\}", text))
        case dict():
            for part in value.values():
                yield from iter_references(part)
        case list():
            for part in value:
                yield from iter_references(part)


def list_stacks() -> dict[str, Stack]:
    """Return every stack that the templates can make of a part, by a name for the test."""
    queue = load_template("queue")
    return {
        **{
            f"queue-{consumer}": Stack(queue, Name="shop", Consumer=consumer)
            for consumer in ("none", "function", "service")
        },
        "exports": Stack(load_template("exports"), Name="shop"),
        "conversations": Stack(load_template("conversations"), Name="shop"),
    }
