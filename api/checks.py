"""What a submission must obey beyond its form. Each check adds all that it finds and never raises."""

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from api import timestamps
from api.envelope import NOT_YET, RETRY_NOT_YET, Envelope, Item, given
from jobs.errors import Finding
from jobs.models.catalog import Catalog, ModelVersion
from jobs.models.spec import ModelSpec

MAX_ID = 128
MAX_METADATA = 16
MAX_METADATA_KEY = 64
MAX_METADATA_VALUE = 512
LONGEST = timedelta(days=366)
MAX_ATTEMPTS = 100

_object_decoder = msgspec.json.Decoder(dict[str, object])


def model(envelope: Envelope, catalog: Catalog, findings: list[Finding]) -> ModelVersion | None:
    """The version that the job is pinned to."""
    if envelope.model is msgspec.UNSET:
        if not any(finding.pointer.startswith("/model") for finding in findings):
            findings.append(Finding("/model", "required", "Name the model to run: a name, or name@version."))
        return None
    name, at, version = envelope.model.partition("@")
    found = catalog.find(name, version if at else None)
    if found is None:
        findings.append(Finding("/model", "unknown_model", _unknown(catalog, name, version if at else None)))
    return found


def _unknown(catalog: Catalog, name: str, version: str | None) -> str:
    models = catalog.models()
    known = models.get(name)
    if known is not None:
        versions = ", ".join(sorted(known.versions))
        asked = known.default_version if version is None else version[:80]
        return f"Model {name} has no version {asked}. Known: {versions}."
    names = ", ".join(sorted(models)[:50]) or "none at all"
    return f"There is no model {name[:80]!r}. Known: {names}."


def not_yet(envelope: Envelope, findings: list[Finding]) -> None:
    """Fields whose feature does not exist are refused by name, never accepted and ignored."""
    for name in NOT_YET:
        if given(getattr(envelope, name)):
            findings.append(Finding(f"/{name}", "not_available", f"{name} is not available yet."))
    if envelope.retry is not None:
        for name in RETRY_NOT_YET:
            if given(getattr(envelope.retry, name)):
                findings.append(Finding(f"/retry/{name}", "not_available", f"retry.{name} is not available yet."))


def one_form(envelope: Envelope, findings: list[Finding]) -> None:
    """`input` or `items`, not both, not neither (`tensors` is refused by `not_yet`)."""
    forms = [name for name in ("input", "items", "tensors") if len(getattr(envelope, name)) > 0]
    if len(forms) > 1:
        findings.append(Finding("", "exactly_one", f"Give exactly one of input, items, not {' and '.join(forms)}."))
    elif not forms:
        findings.append(Finding("", "exactly_one", "Give exactly one of input, items."))


def outputs(envelope: Envelope, spec: ModelSpec, findings: list[Finding]) -> None:
    wanted = envelope.outputs
    if wanted is None:
        return
    if spec.input != "tensors":
        findings.append(Finding("/outputs", "not_for_json", f"{spec.name} is a json model: it has no named outputs."))
        return
    if not wanted:
        findings.append(Finding("/outputs", "empty", "Name at least one output, or leave outputs out for all."))
    known = [tensor.name for tensor in spec.outputs]
    for position, name in enumerate(wanted):
        if name not in known:
            detail = f"There is no output {name[:80]!r}. Known: {', '.join(known)}."
            findings.append(Finding(f"/outputs/{position}", "unknown_output", detail))
        elif name in wanted[:position]:
            findings.append(Finding(f"/outputs/{position}", "duplicate", f"{name} is named twice."))


def ids(items: Sequence[Item], findings: list[Finding]) -> tuple[str, ...] | None:
    """The items' ids, or None where every item has its index for an id."""
    if all(item.id is None for item in items):
        return None
    seen: dict[str, int] = {}
    names = []
    for index, item in enumerate(items):
        name = str(index) if item.id is None else item.id
        pointer = f"/items/{index}/id"
        names.append(name)
        if not name or len(name) > MAX_ID:
            findings.append(Finding(pointer, "length", f"An id has 1 to {MAX_ID} characters, not {len(name)}.", index))
        elif "\0" in name:
            findings.append(Finding(pointer, "character", "An id must not hold the character U+0000.", index))
        elif name in seen:
            detail = f"Item {seen[name]} has this id already; ids are unique in a job (an item's default is its index)."
            findings.append(Finding(pointer, "duplicate_id", detail, index))
        else:
            seen[name] = index
    return tuple(names)


def metadata(pairs: dict[str, str], findings: list[Finding]) -> None:
    if len(pairs) > MAX_METADATA:
        findings.append(Finding("/metadata", "too_many", f"At most {MAX_METADATA} pairs, not {len(pairs)}."))
    for key, value in pairs.items():
        pointer = f"/metadata/{key[:80].replace('~', '~0').replace('/', '~1')}"
        if not 1 <= len(key) <= MAX_METADATA_KEY:
            findings.append(Finding(pointer, "length", f"A key has 1 to {MAX_METADATA_KEY} characters."))
        if len(value) > MAX_METADATA_VALUE:
            findings.append(Finding(pointer, "length", f"A value has at most {MAX_METADATA_VALUE} characters."))
        if "\0" in key or "\0" in value:
            findings.append(Finding(pointer, "character", "Metadata must not hold the character U+0000."))


def parameters(
    raw: msgspec.Raw, pointer: str, limit: int, findings: list[Finding], index: int | None = None
) -> msgspec.Raw | None:
    """The verbatim object, or None where there is none (absent, null, empty)."""
    if not given(raw):
        return None
    if len(raw) > limit:
        findings.append(Finding(pointer, "too_large", f"Parameters have at most {limit} bytes, not {len(raw)}.", index))
        return None
    try:
        found = _object_decoder.decode(raw)
    except (msgspec.MsgspecError, RecursionError) as error:
        detail = "nested too deeply" if isinstance(error, RecursionError) else str(error).replace("`", "")
        findings.append(Finding(pointer, "type", f"Expected a JSON object: {detail}.", index))
        return None
    return raw if found else None


def seconds(value: float | None, pointer: str, findings: list[Finding]) -> timedelta | None:
    """A duration above 0 and at most a year."""
    if value is None:
        return None
    if not 0.001 <= value <= LONGEST.total_seconds():
        detail = f"Expected seconds from 0.001 to {LONGEST.total_seconds():g}, got {value:g}."
        findings.append(Finding(pointer, "range", detail))
        return None
    return timedelta(seconds=value)


def start(text: str | None, now: datetime, findings: list[Finding]) -> datetime | None:
    """`not_before`: an instant with its zone, at most a year ahead; one that is past already changes nothing."""
    if text is None:
        return None
    try:
        at = timestamps.read(text)
    except ValueError as error:
        findings.append(Finding("/not_before", "time", f"not_before: {error}."))
        return None
    if at > now + LONGEST:
        findings.append(Finding("/not_before", "range", "not_before lies more than a year ahead."))
        return None
    return at if at > now else None


def attempts(envelope: Envelope, spec_attempts: int, findings: list[Finding]) -> int:
    asked = None if envelope.retry is None else envelope.retry.max_attempts
    if asked is None:
        return spec_attempts
    if not 1 <= asked <= MAX_ATTEMPTS:
        detail = f"Expected 1 to {MAX_ATTEMPTS} attempts, got {asked}."
        findings.append(Finding("/retry/max_attempts", "range", detail))
    return asked
