"""Settings out of a file and the environment: every value checked, everything that is wrong named at once.

A field is set by its name in the table ``[server]`` of ``batchyard.toml`` (those of a part in ``[server.part]``), or by
``BATCHYARD_<NAME>`` or ``BATCHYARD_<PART>_<NAME>``; ``…_FILE`` names a file that holds it, for secrets. The environment
wins over the file, the command line over both.
"""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import timedelta
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_type_hints

PREFIX = "BATCHYARD_"
TABLE = "server"
OF_CLIENTS = frozenset({"url", "api_key"})
"""What the command and the SDK read from the same file."""


class SettingsError(ValueError):
    """One line for each thing that is wrong, with its place."""


def read(
    kind: type[Any], environ: Mapping[str, str], file: Path | None, given: Mapping[str, object], known: frozenset[str]
) -> dict[str, Any]:
    """Arguments for the dataclass `kind`. `known` are fields that are set in no such way and left alone."""
    errors: list[str] = []
    document = _document(file, errors) if file is not None else {}
    values = _part(kind, "", document, environ, str(file), known, errors)
    if errors:
        raise SettingsError("\n".join(errors))
    return {**values, **given}


def _document(file: Path, errors: list[str]) -> dict[str, Any]:
    """The table of the file that is ours."""
    try:
        document = tomllib.loads(file.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        errors.append(f"{file}: {error}")
        return {}
    others = ", ".join(sorted(OF_CLIENTS))
    unknown = [key for key in document if key != TABLE and key not in OF_CLIENTS]
    errors.extend(f"{file}: {key}: there is nothing of this name beside [{TABLE}]; known: {others}" for key in unknown)
    table = document.get(TABLE, {})
    if not isinstance(table, dict):
        errors.append(f"{file}: {TABLE}: expected a table [{TABLE}]")
        return {}
    return table


def _part(
    kind: type[Any],
    name: str,
    table: Mapping[str, Any],
    environ: Mapping[str, str],
    file: str,
    left: frozenset[str],
    errors: list[str],
) -> dict[str, Any]:
    """Fields of a dataclass that are set somewhere; parts of it as values of their own."""
    hints = get_type_hints(kind)
    settable = {field.name: hints[field.name] for field in fields(kind) if field.name not in left}
    where = f"{file}: [{TABLE}.{name}] " if name else f"{file}: [{TABLE}] "
    unknown = [key for key in table if key not in settable]
    errors.extend(f"{where}{key}: there is no such setting; known: {', '.join(settable)}" for key in unknown)
    values: dict[str, Any] = {}
    for key, hint in settable.items():
        part = _dataclass_of(hint)
        if part is not None:
            inner = table.get(key, {})
            if not isinstance(inner, dict):
                errors.append(f"{where}{key}: expected a table [{key}]")
                continue
            made = _part(part, key, inner, environ, file, frozenset(), errors)
            if made:
                _build(part, key, made, values, errors)
            continue
        for place, raw in _set(key, name, table, environ, where, errors):
            try:
                values[key] = _convert(raw, hint)
            except (ValueError, TypeError) as error:
                errors.append(f"{place}: {error}")
    return values


def _build(part: type[Any], name: str, made: dict[str, Any], values: dict[str, Any], errors: list[str]) -> None:
    lacking = [field.name for field in fields(part) if field.name not in made and _required(field)]
    if lacking:
        errors.append(f"{name}: {', '.join(lacking)} must be set too")
    elif not errors:
        values[name] = part(**made)


def _required(field: "Field[Any]") -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _set(
    key: str, part: str, table: Mapping[str, Any], environ: Mapping[str, str], where: str, errors: list[str]
) -> Iterator[tuple[str, Any]]:
    """Where the field is set, and to what; nothing where it is not."""
    variable = PREFIX + (f"{part}_{key}" if part else key).upper()
    in_file = f"{variable}_FILE"
    if variable in environ:
        if in_file in environ:
            errors.append(f"{variable} and {in_file} are both set: which of them counts?")
        yield variable, environ[variable]
    elif in_file in environ:
        try:
            yield in_file, Path(environ[in_file]).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            errors.append(f"{in_file}: {error}")
    elif key in table:
        yield f"{where}{key}", table[key]


def _dataclass_of(hint: Any) -> type[Any] | None:
    """The dataclass behind ``Part`` or ``Part | None``."""
    options = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    return next((option for option in options if isinstance(option, type) and is_dataclass(option)), None)


def _convert(raw: Any, hint: Any) -> Any:
    """A value of TOML or a text of the environment as what the field holds."""
    if isinstance(hint, UnionType):
        if raw == "" and NoneType in get_args(hint):
            return None
        (hint,) = (option for option in get_args(hint) if option is not NoneType)
    if hint == tuple[str, ...]:
        listed = raw.split(",") if isinstance(raw, str) else raw
        if not isinstance(listed, list) or not all(isinstance(one, str) and one.strip() for one in listed):
            raise ValueError("expected names with commas between them, or a list of texts")
        return tuple(one.strip() for one in listed)
    if hint is bool:
        return _flag(raw)
    if hint is timedelta:
        return timedelta(seconds=_number(raw, float, "seconds"))
    if hint in (int, float):
        return _number(raw, hint, "a whole number" if hint is int else "a number")
    if not isinstance(raw, str):
        raise ValueError(f"expected a text, got {raw!r}")
    return Path(raw) if hint is Path else raw


def _number(raw: Any, kind: type[Any], what: str) -> Any:
    if isinstance(raw, bool) or not isinstance(raw, str | int | float) or (kind is int and isinstance(raw, float)):
        raise ValueError(f"expected {what}, got {raw!r}")
    try:
        number = kind(raw)
    except ValueError:
        raise ValueError(f"expected {what}, got {raw!r}") from None
    if not 0 <= number < 1e12:
        raise ValueError(f"expected {what} from 0 on, got {raw!r}")
    return number


def _flag(raw: Any) -> bool:
    if isinstance(raw, bool):
        return raw
    if str(raw).lower() in ("true", "1", "yes", "on"):
        return True
    if str(raw).lower() in ("false", "0", "no", "off"):
        return False
    raise ValueError(f"expected true or false, got {raw!r}")
