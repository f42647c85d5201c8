"""An ONNX graph that grows node by node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import helper, numpy_helper

# Old enough for every runtime in use, new enough for ReduceL2 with axes as an input.
OPSET = 18
IR_VERSION = 9


@dataclass
class OnnxGraph:
    """Nodes and constants; `last` names the value to continue from, `prefix` begins the names of all."""

    last: str
    prefix: str = ""
    nodes: list[Any] = field(default_factory=list)
    constants: list[Any] = field(default_factory=list)

    def constant(self, values: Any) -> str:
        """Add numbers, or an array of objects as texts; return their name."""
        name = f"{self.prefix}constant{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.array(values, order="C"), name))
        return name

    def integers(self, *values: int) -> str:
        """Add a vector of int64; return its name."""
        return self.constant(np.array(values, np.int64))

    def add(self, operator: str, *inputs: Any, **attributes: Any) -> str:
        """Add a node; return the name of its output.  Inputs that are no names are numbers."""
        name = f"{self.prefix}value{len(self.nodes)}"
        names = [one if isinstance(one, str) else self.constant(one) for one in inputs]
        self.add_named(operator, names, [name], **attributes)
        return name

    def add_named(
        self, operator: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any
    ) -> None:
        """Add a node with outputs of these names."""
        self.nodes.append(helper.make_node(operator, list(inputs), list(outputs), **attributes))

    def model(
        self, inputs: Sequence[Any], outputs: Sequence[Any], version: int = OPSET, ir: int = IR_VERSION
    ) -> Any:
        """Return the model with these inputs and outputs."""
        return helper.make_model(
            helper.make_graph(self.nodes, "topline", list(inputs), list(outputs), self.constants),
            opset_imports=[helper.make_opsetid("", version)],
            ir_version=ir,
            producer_name="topline",
        )
