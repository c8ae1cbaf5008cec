"""placeholder"""
from ..ir import Graph
def fuse(graph: Graph) -> Graph:
    return graph
