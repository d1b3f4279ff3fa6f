"""facebookresearch/XLM: its product-key memory `HashingMemoryProductFast` (Lample et al., 2019).

Its package imports Apex and more, so only the folder of the memory is loaded, with empty packages above.
"""

import argparse
import importlib
import sys
import types
from collections.abc import Callable
from typing import Any

import torch


def _memory() -> Any:
    """The module `xlm.model.memory.memory`, without the packages above it."""
    folder = next(path for path in sys.path if path)  # the checkout
    for name in ('xlm', 'xlm.model'):
        package = types.ModuleType(name)
        package.__path__ = [f'{folder}/{name.replace(".", "/")}']
        sys.modules[name] = package
    tools = types.ModuleType('xlm.utils')
    tools.bool_flag = lambda text: text.lower() not in ('off', 'false', '0')
    sys.modules['xlm.utils'] = tools
    return importlib.import_module('xlm.model.memory.memory')


def _adam(layer: Any, sparse: bool) -> list[Any]:
    """Adam for all parameters; a sparse gradient, which is that of the values, has the sparse one."""
    of_values = [layer.values.weight]
    others = [parameter for parameter in layer.parameters() if parameter is not of_values[0]]
    kind = torch.optim.SparseAdam if sparse else torch.optim.Adam
    return [torch.optim.Adam(others, 1e-3), kind(of_values, 1e-3)]


def build(settings: dict[str, Any], sizes: Any) -> Callable[[], float]:
    """Forward and backward of one layer, and Adam if `settings` says so.

    Args:
      settings: num_keys, num_heads, top_k, query_dim, sparse, adam.
      sizes: of both sides.
    """
    memory = _memory()
    parser = argparse.ArgumentParser()
    memory.HashingMemory.register_args(parser)
    params = parser.parse_args([])
    params.mem_n_keys, params.mem_heads = settings['num_keys'], settings['num_heads']
    params.mem_knn, params.mem_k_dim = settings['top_k'], settings['query_dim']
    params.mem_query_batchnorm, params.mem_sparse = True, settings['sparse']
    params.mem_input2d = False
    memory.HashingMemory.check_params(params)
    layer = memory.HashingMemoryProductFast(sizes.width, sizes.width, params)
    torch.manual_seed(0)
    x, weights = (torch.randn(sizes.lanes, sizes.segment, sizes.width) for _ in range(2))
    x.requires_grad_()
    optimizers = _adam(layer, settings['sparse']) if settings['adam'] else []

    def call() -> float:
        x.grad = None
        layer.zero_grad()
        loss = (layer(x) * weights).sum()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        return loss.item()

    return call
