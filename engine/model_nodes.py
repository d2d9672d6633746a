"""What the model nodes of a graph are together: a pipeline's capacity, what its batches cost, who answers.

Pure; read once, when a pipeline opens.
"""

from __future__ import annotations

from engine.bounds import Bounds
from engine.graph import Capacity, Graph, Model
from engine.runtime.cost import Cost, CostSum


def capacity_of(graph: Graph, bounds: Bounds, host_threads: int) -> Capacity:
    """The tightest of the model nodes; without any, one request of the largest kind."""
    given = [node.capacity for node in graph.nodes.values() if node.capacity is not None]
    if not given:
        return Capacity(bounds.tokens_per_request, bounds.samples, host_threads)
    return Capacity(
        min(each.tokens for each in given),
        min(each.samples for each in given),
        min(each.batches for each in given),
    )


def cost_of(graph: Graph) -> Cost | None:
    """Of all models together; None where one of them was not measured."""
    models = [node.cost for node in graph.nodes.values() if node.is_model]
    measured = tuple(cost for cost in models if cost is not None)
    if not measured or len(measured) < len(models):
        return None
    return measured[0] if len(measured) == 1 else CostSum(measured)


def model_of(graph: Graph) -> Model | None:
    """The model that answers; several are named together."""
    models = [node.model for node in graph.nodes.values() if node.model is not None]
    if not models:
        return None
    return Model("+".join(model.name for model in models), "+".join(model.digest for model in models))
