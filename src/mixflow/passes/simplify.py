"""placeholder"""
from ..ir import Graph
def simplify(graph: Graph) -> Graph:
    return graph
