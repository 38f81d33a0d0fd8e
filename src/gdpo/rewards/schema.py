"""A JSON schema, read from what a user gives and checked before it is used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gdpo.core.errors import Error
from gdpo.rewards.support import optional


def read_schema(schema: Any) -> dict[str, Any] | bool:
    """The schema as a dict (or true or false).

    Args:
        schema: it itself, its text as JSON, or the path of a JSON file.

    Raises:
        Error: no jsonschema, no such file, no JSON, no schema, or a reference that leads nowhere.
    """
    jsonschema = optional("json_schema", "jsonschema", "jsonschema")
    if isinstance(schema, str | Path):
        schema = _parsed(schema)
    if not isinstance(schema, dict | bool):
        raise Error(f"json_schema has schema={schema!r}, but a dict, JSON text or the path of a JSON file was expected")
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        kind.check_schema(schema)
        json.dumps(schema)
    except jsonschema.SchemaError as error:
        raise Error(f"json_schema has a schema that is none, at {error.json_path}: {error.message}") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise Error(f"json_schema has a schema that cannot be written as JSON: {error}") from None
    _check_references(schema, kind)
    return schema


def _parsed(given: str | Path) -> Any:
    text = str(given)
    if isinstance(given, Path) or not text.lstrip().startswith("{"):
        try:
            text = Path(given).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise Error(f"json_schema cannot read its schema from {str(given)!r}: {error}") from None
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Error(f"json_schema has a schema that is no JSON: {error}") from None


def _check_references(schema: dict[str, Any] | bool, kind: Any) -> None:
    """Every ``$ref`` leads somewhere within the schema; with ``$id`` in parts of it only use can tell."""
    import referencing
    import referencing.jsonschema

    uri = "" if isinstance(schema, bool) else schema.get("$id", "")
    dialect = kind.META_SCHEMA.get("$schema", "") or kind.META_SCHEMA.get("$id", "")
    specification = referencing.jsonschema.specification_with(dialect, default=referencing.Specification.OPAQUE)
    resource = referencing.Resource(contents=schema, specification=specification)
    resolver = referencing.Registry().with_resource(uri, resource).resolver(base_uri=uri)
    for reference in _references(schema):
        try:
            resolver.lookup(reference)
        except referencing.exceptions.Unresolvable:
            raise Error(f"json_schema has the reference {reference!r}, which leads nowhere within the schema") from None


def _references(part: Any) -> list[str]:
    if isinstance(part, list):
        return [found for entry in part for found in _references(entry)]
    if not isinstance(part, dict) or part.get("const") or part.get("enum"):
        return []
    own = [part["$ref"]] if isinstance(part.get("$ref"), str) else []
    return own + [found for value in part.values() for found in _references(value)]
