"""/v1/models: what can be asked for."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from api import examples
from api.models import model_view
from api.problems import Problem
from api.replies import Reply
from api.routes.common import Caller, FrontOf, only, problem_responses
from api.views import encode

router = APIRouter(tags=["models"])


@router.get("/v1/models", summary="List models", responses={200: examples.MODELS_RESPONSE})
async def list_models(request: Request, key: Caller, front: FrontOf) -> Response:
    """Every model of the repository, ready or not."""
    only(request)
    services = front.services
    backlog = await front.read(services.store.backlog)
    models = sorted(services.catalog.models().items())
    views = [model_view(model, services.fleet, backlog) for _, model in models]
    return Reply(200, encode({"data": views})).response()


@router.get(
    "/v1/models/{model}",
    summary="Read a model",
    responses={200: examples.MODEL_RESPONSE, **problem_responses("not_found")},
)
async def read(request: Request, model: str, key: Caller, front: FrontOf) -> Response:
    """Its versions and where they stand, its inputs and outputs, what waits for it and how it was batched."""
    only(request)
    found = front.services.catalog.models().get(model)
    if found is None:
        raise Problem("not_found", f"There is no model {model[:80]!r}.")
    backlog = await front.read(front.services.store.backlog)
    return Reply(200, encode(model_view(found, front.services.fleet, backlog))).response()
