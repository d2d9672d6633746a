"""One module a model_type, each with its `FAMILY`; engine.models.family finds them."""
