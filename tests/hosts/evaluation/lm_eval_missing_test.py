"""Without the package lm-eval."""

import sys

import pytest

from longmem_jax.errors import UsageError


def test_the_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, 'lm_eval', None)
    monkeypatch.delitem(sys.modules, 'longmem_jax.hosts.evaluation.lm_eval', raising=False)
    with pytest.raises(UsageError, match=r"lm-eval is needed: pip install 'longmem_jax\[eval\]'"):
        import longmem_jax.hosts.evaluation.lm_eval  # noqa: F401
