# SPDX-License-Identifier: Apache-2.0
"""Loads PyTorch's own suite of distributed tests, and adds a backend's name wherever the suite singles out Gloo.

The suite decides by name which tests a backend may run. It skips all DDP tests of a backend that its lists do not name,
and all-to-all on CPU for anything but MPI. Nothing else of the suite is changed, and no test is left out.
"""

from __future__ import annotations

import ast
import importlib.util
import pathlib
import sys
import types

SUITE = "torch.testing._internal.distributed.distributed_test"


class NameAdder(ast.NodeTransformer):
    """Adds ``backend`` to the suite's comparisons with "gloo", and to those that reserve all-to-all for "mpi"."""

    def __init__(self, backend: str) -> None:
        self.backend = backend

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        """``BACKEND == "gloo"`` becomes ``BACKEND in ("gloo", backend)``; ``!=`` likewise. "mpi" only with ``!=``."""
        self.generic_visit(node)
        match node:
            case ast.Compare(ast.Name("BACKEND"), [ast.Eq()], [ast.Constant("gloo" as name)]):
                operator: ast.cmpop = ast.In()
            case ast.Compare(ast.Name("BACKEND"), [ast.NotEq()], [ast.Constant(("gloo" | "mpi") as name)]):
                operator = ast.NotIn()
            case _:
                return node
        names = ast.Tuple([ast.Constant(name), ast.Constant(self.backend)], ast.Load())
        return ast.copy_location(ast.Compare(node.left, [operator], [names]), node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Adds the name to the set in ``require_backend_is_available({"gloo"})``."""
        self.generic_visit(node)
        match node:
            case ast.Call(ast.Name("require_backend_is_available"), [ast.Set([ast.Constant("gloo")]) as names]):
                names.elts.append(ast.Constant(self.backend))
        return node


def load_suite(backend: str) -> types.ModuleType:
    """Imports the suite, and adds the name of a backend that it does not know.

    Args:
        backend: value of the environment variable BACKEND, which the suite reads at import.
    Returns:
        the module, also in ``sys.modules`` under its own name.
    """
    from torch.testing._internal.common_distributed import DistTestCases

    spec = importlib.util.find_spec(SUITE)
    assert spec is not None and spec.origin is not None
    tree = ast.parse(pathlib.Path(spec.origin).read_text(), spec.origin)
    is_known = backend in DistTestCases.backend_feature["ddp"]
    if not is_known:
        tree = ast.fix_missing_locations(NameAdder(backend).visit(tree))
        for feature in ("gpu", "cuda", "ddp", "subgroup", "plugin"):
            DistTestCases.backend_feature[feature].add(backend)
    module = importlib.util.module_from_spec(spec)
    sys.modules[SUITE] = module
    exec(compile(tree, spec.origin, "exec", dont_inherit=True), module.__dict__)
    if not is_known:
        for group in ("PROFILING", "CUDA_PROFILING", "SEND_RECV_PROFILING"):
            getattr(module, f"{group}_SUPPORTED_BACKENDS").append(backend)
    return module
