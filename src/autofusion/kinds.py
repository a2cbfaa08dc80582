"""Kinds of operators: all that fusion asks about one."""

from __future__ import annotations

from enum import StrEnum


class Kind(StrEnum):
    """How an operator's output elements depend on its input elements. Fusion asks for the kind, never for the name."""

    SOURCE = "source"  # no tensor input
    ELEMENTWISE = "elementwise"  # out[i] from in[i], inputs broadcast
    BROADCAST = "broadcast"  # a view that repeats elements
    REDUCE = "reduce"  # folds whole axes
    SCAN = "scan"  # a running fold along one axis
    WINDOW = "window"  # folds a neighbourhood
    VIEW = "view"  # out[i] = in[f(i)], f an index expression
    JOIN = "join"  # inputs are placed into regions of the output
    GATHER = "gather"  # out[i] = in[index[i]]
    SCATTER = "scatter"  # out[index[i]] = in[i]
    CONTRACT = "contract"  # sum of products over shared axes
    COMM = "comm"  # talks to other devices
    OPAQUE = "opaque"  # known by its reference alone
