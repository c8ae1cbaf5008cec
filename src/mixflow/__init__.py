"""mixflow: declared graphs and imperative tensors on one native engine (``import mixflow as mx``)."""

__version__ = "0.1.0"
