"""The query of a request: nothing unknown and nothing twice, for a parameter with a typo must not be ignored."""

from urllib.parse import parse_qsl

from api import problems

MOST = 100  # parameters


def parse(query: bytes, *known: str, prefix: str | None = None) -> dict[str, str]:
    """The parameters, decoded. Problem for one that is not `known` (nor begins with `prefix`), or that stands twice."""
    if not query:
        return {}
    try:
        pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True, max_num_fields=MOST)
    except ValueError:
        raise problems.one("/query", "too_many", f"At most {MOST} parameters.") from None
    found: dict[str, str] = {}
    for name, value in pairs:
        if name not in known and not (prefix and name.startswith(prefix)):
            detail = f"There is no parameter {name[:80]!r} here. Known: {', '.join(known) or 'none'}."
            raise problems.one(f"/query/{name[:80]}", "unknown_parameter", detail)
        if name in found:
            raise problems.one(f"/query/{name[:80]}", "duplicate", f"{name[:80]} is given more than once.")
        found[name] = value
    return found
