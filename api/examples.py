"""Schemas and examples of the OpenAPI document. The validator is msgspec's, so the document is written, not derived; a
test sends every example through it."""

from typing import Any

_TIME = {"type": "string", "format": "date-time"}
_MAYBE_TIME = {"type": ["string", "null"], "format": "date-time"}
_SECONDS = {"type": ["number", "null"], "minimum": 0.001}
_COUNT = {"type": "integer", "minimum": 0}
_OBJECT = {"type": ["object", "null"]}

JOB_ID = "job_01M8QHS1Z5P2HXV6WDSG1WWN40"

JOB: dict[str, Any] = {
    "id": JOB_ID,
    "kind": "inline",
    "model": "embed",
    "version": "2",
    "state": "succeeded",
    "paused": False,
    "priority": "normal",
    "counts": {
        "total": 1, "queued": 0, "running": 0, "succeeded": 1, "failed": 0, "cancelled": 0, "expired": 0,
    },
    "sealed": True,
    "created_at": "2026-11-30T17:00:00.000Z",
    "started_at": "2026-11-30T17:00:00.012Z",
    "finished_at": "2026-11-30T17:00:00.031Z",
    "deadline_at": None,
    "results_expire_at": "2026-12-07T17:00:00.031Z",
    "queue": None,
    "usage": {"engine_seconds": 0.0021, "input_bytes": 16, "output_bytes": 29},
    "error": None,
    "output": {"embedding": [0.1, 0.2]},
    "parent_job": None,
    "metadata": {"team": "search"},
    "links": {"results": f"/v1/jobs/{JOB_ID}/results", "events": f"/v1/jobs/{JOB_ID}/events", "explain": None},
}  # fmt: skip

SUBMISSIONS: dict[str, dict[str, Any]] = {
    "one input": {"value": {"model": "embed", "input": {"text": "hello"}}},
    "items, pinned to a version": {
        "value": {
            "model": "embed@2",
            "items": [
                {"id": "doc-17", "input": {"text": "a"}},
                {"id": "doc-18", "input": {"text": "b"}, "parameters": {"normalize": True}},
            ],
            "priority": "normal",
            "metadata": {"team": "search"},
            "timeouts": {"queue_seconds": 600, "run_seconds": 30, "total_seconds": 3600},
            "retry": {"max_attempts": 3},
            "results_expire_after_seconds": 604800,
        }
    },
    "a tensor model": {"value": {"model": "mlp", "items": [{"input": {"x": [0.1, 0.2, 0.3, 0.4]}}], "outputs": ["y"]}},
    "not before a time": {
        "value": {"model": "embed", "input": {"text": "later"}, "not_before": "2026-12-24T18:00:00+01:00"}
    },
}

_MODEL: dict[str, Any] = {
    "name": "mlp",
    "default_version": "1",
    "versions": [
        {"version": "1", "state": "ready", "error": None, "engine": "onnxruntime", "artifact_sha256": "9f86d081…"}
    ],
    "input": "tensors",
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [64]}],
    "outputs": [{"name": "y", "datatype": "FP32", "shape": [10]}],
    "batch": {"max_size": 64},
    "batching": "sound",
    "batching_reason": None,
    "pool": "default",
    "workers": 1,
    "ready": True,
    "held": None,
    "queue": {"items": 0, "engine_seconds": 0.0},
    "stats": {
        "batches": 120, "batch_items": 3840, "padded_elements": 0, "elements": 0, "engine_seconds": 1.9,
        "closed": {"full": 100, "delay": 12, "idle": 8},
    },
}  # fmt: skip

_LINES = (
    '{"index":17,"id":"doc-17","state":"succeeded","output":{"embedding":[0.1,0.2]},"error":null,"attempts":1,'
    '"version":"2"}\n'
    '{"index":18,"id":"doc-18","state":"failed","output":null,"error":{"code":"handler_error","message":"RuntimeError: '
    'vocabulary not loaded","permanent":false,"stage":"preprocess"},"attempts":3,"version":"2"}\n'
)

_ITEM = {
    "type": "object",
    "required": ["input"],
    "additionalProperties": False,
    "properties": {
        "input": {"description": "Any JSON for a json model; `{name: values}` for a tensor model"},
        "id": {"type": ["string", "null"], "minLength": 1, "maxLength": 128, "description": "Default: the index"},
        "parameters": _OBJECT,
    },
}

SCHEMAS: dict[str, Any] = {
    "Submission": {
        "type": "object",
        "required": ["model"],
        "additionalProperties": False,
        "description": "Exactly one of `input` and `items`. Unknown fields are refused.",
        "oneOf": [{"required": ["input"]}, {"required": ["items"]}],
        "properties": {
            "model": {"type": "string", "description": "`name` (its default version) or `name@version`"},
            "input": {"description": "One item's input"},
            "items": {"type": "array", "minItems": 1, "maxItems": 1000, "items": _ITEM},
            "outputs": {"type": ["array", "null"], "items": {"type": "string"}, "description": "Tensor models only"},
            "priority": {"enum": ["high", "normal", "low", None]},
            "parameters": _OBJECT,
            "metadata": {
                "type": ["object", "null"],
                "maxProperties": 16,
                "additionalProperties": {"type": "string", "maxLength": 512},
            },
            "not_before": _MAYBE_TIME,
            "timeouts": {
                "type": ["object", "null"],
                "additionalProperties": False,
                "properties": {"queue_seconds": _SECONDS, "run_seconds": _SECONDS, "total_seconds": _SECONDS},
            },
            "retry": {
                "type": ["object", "null"],
                "additionalProperties": False,
                "properties": {"max_attempts": {"type": ["integer", "null"], "minimum": 1, "maximum": 100}},
            },
            "results_expire_after_seconds": _SECONDS,
        },
    },
    "Job": {
        "type": "object",
        "required": list(JOB),
        "properties": {
            "id": {"type": "string"},
            "kind": {"enum": ["inline", "bulk"]},
            "model": {"type": "string"},
            "version": {"type": "string"},
            "state": {"enum": ["queued", "running", "succeeded", "failed", "partially_failed", "cancelled", "expired"]},
            "paused": {"type": "boolean"},
            "priority": {"enum": ["high", "normal", "low"]},
            "counts": {"type": "object", "properties": dict.fromkeys(JOB["counts"], _COUNT)},
            "sealed": {"type": "boolean"},
            "created_at": _TIME,
            "started_at": _MAYBE_TIME,
            "finished_at": _MAYBE_TIME,
            "deadline_at": _MAYBE_TIME,
            "results_expire_at": _MAYBE_TIME,
            "queue": {"type": "null"},
            "usage": {"type": "object"},
            "error": {"type": ["object", "null"], "description": "Of the one item, for a job of a single `input`"},
            "output": {"description": "Of a single `input` that succeeded, where small enough to be inline"},
            "parent_job": {"type": ["string", "null"]},
            "metadata": {"type": "object", "additionalProperties": {"type": "string"}},
            "links": {"type": "object"},
        },
    },
    "Problem": {
        "type": "object",
        "required": ["type", "title", "status", "code", "detail", "instance", "request_id", "retryable"],
        "properties": {
            "type": {"type": "string", "description": "An address of this API that says what to do"},
            "title": {"type": "string"},
            "status": {"type": "integer"},
            "code": {"type": "string"},
            "detail": {"type": "string"},
            "instance": {"type": "string"},
            "request_id": {"type": "string"},
            "retryable": {"type": "boolean"},
            "errors": {
                "type": "array",
                "maxItems": 100,
                "items": {
                    "type": "object",
                    "required": ["pointer", "code", "detail"],
                    "properties": {
                        "pointer": {"type": "string"},
                        "code": {"type": "string"},
                        "detail": {"type": "string"},
                        "index": {"type": "integer"},
                    },
                },
            },
        },
    },
}


def _header(name: str, description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "header", "required": False, "description": description, "schema": schema}


SUBMIT: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": {"$ref": "#/components/schemas/Submission"}, "examples": SUBMISSIONS}
        },
    },
    "parameters": [
        _header("Idempotency-Key", "Makes a retry safe", {"type": "string", "maxLength": 255}),
        _header("Prefer", "`wait=N`: answer when the job has ended, or after N seconds", {"type": "string"}),
    ],
}
WAIT: dict[str, Any] = {
    "name": "wait",
    "in": "query",
    "required": False,
    "description": "Seconds to wait for the job to end, 60 at most",
    "schema": {"type": "number", "minimum": 0, "maximum": 60},
}
METADATA_FILTER: dict[str, Any] = {
    "name": "metadata",
    "in": "query",
    "required": False,
    "description": "Jobs that carry these pairs: `metadata.KEY=VALUE`",
    "style": "form",
    "explode": True,
    "schema": {"type": "object", "additionalProperties": {"type": "string"}},
}


def _json(description: str, schema: dict[str, Any], example: Any) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema, "example": example}}}


_JOB_REF = {"$ref": "#/components/schemas/Job"}
JOB_RESPONSE = _json("The job", _JOB_REF, JOB)
PAGE_RESPONSE = _json(
    "A page of jobs",
    {
        "type": "object",
        "properties": {"data": {"type": "array", "items": _JOB_REF}, "next": {"type": ["string", "null"]}},
    },
    {"data": [JOB], "next": None},
)
RESULTS_RESPONSE: dict[str, Any] = {
    "description": "Result lines",
    "headers": {
        "Batchyard-Complete": {"schema": {"enum": ["true", "false"]}},
        "Batchyard-Next-Index": {"schema": {"type": "integer"}},
    },
    "content": {"application/jsonl": {"schema": {"type": "string"}, "example": _LINES}},
}
EVENTS_RESPONSE: dict[str, Any] = {
    "description": "Events",
    "content": {
        "text/event-stream": {
            "schema": {"type": "string"},
            "example": 'event: progress\nid: 523\ndata: {"counts":{"total":1000},"rate_per_second":812.4,'
            '"eta_at":"2026-11-30T17:00:09.000Z"}\n\n',
        }
    },
}
MODEL_RESPONSE = _json("The model", {"type": "object"}, _MODEL)
MODELS_RESPONSE = _json("All models", {"type": "object"}, {"data": [_MODEL]})
