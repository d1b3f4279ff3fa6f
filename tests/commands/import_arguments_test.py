"""Arguments and weights of the authors' programs that are damaged, before anything is compiled."""

import json
import types

import numpy as np
import pytest
from safetensors.numpy import save_file

from longmem_jax.commands.import_checkpoint import import_checkpoint
from longmem_jax.errors import UsageError
from longmem_jax.released import transformer_xl

SETTINGS = dict(
    n_token=11, n_layer=1, n_head=2, d_model=8, d_head=4, d_inner=16, mem_len=4, tie_weight=True
)  # fmt: skip
SHAPES = {
    'r_w_bias': (2, 4),
    'r_r_bias': (2, 4),
    'word_emb.emb_layers.0.weight': (11, 8),
    'crit.out_layers.0.bias': (11,),
    'layers.0.dec_attn.qkv_net.weight': (24, 8),
    'layers.0.dec_attn.o_net.weight': (8, 8),
    'layers.0.dec_attn.r_net.weight': (8, 8),
    'layers.0.dec_attn.layer_norm.weight': (8,),
    'layers.0.dec_attn.layer_norm.bias': (8,),
    'layers.0.pos_ff.layer_norm.weight': (8,),
    'layers.0.pos_ff.layer_norm.bias': (8,),
    'layers.0.pos_ff.CoreNet.0.weight': (16, 8),
    'layers.0.pos_ff.CoreNet.0.bias': (16,),
    'layers.0.pos_ff.CoreNet.3.weight': (8, 16),
    'layers.0.pos_ff.CoreNet.3.bias': (8,),
}


class Reached(Exception):
    """Everything was read and compared."""


def imported(tmp_path, settings, shapes=SHAPES, cut=0):
    """Imports to an experiment that is never made: the model of the files is compared with itself."""
    (tmp_path / 'args.json').write_text(
        settings if isinstance(settings, str) else json.dumps(settings)
    )
    path = tmp_path / 'weights'
    save_file({name: np.ones(shape, np.float32) for name, shape in shapes.items()}, path)
    path.write_bytes(path.read_bytes()[: -cut or None])

    class Experiment:
        config = types.SimpleNamespace(model=transformer_xl.model_config(SETTINGS))

        @property
        def abstract_state(self):
            raise Reached

    import_checkpoint(Experiment(), path, tmp_path / 'args.json')


def test_whole_files_are_read(tmp_path):
    with pytest.raises(Reached):
        imported(tmp_path, SETTINGS)


@pytest.mark.parametrize(
    'settings, message',
    [
        (
            {name: value for name, value in SETTINGS.items() if name != 'd_model'},
            "'d_model' is missing",
        ),
        (SETTINGS | dict(n_layer='x'), "n_layer = 'x': must be a whole number"),
        (SETTINGS | dict(n_layer=10**9), 'n_layer = 1000000000'),
        (SETTINGS | dict(n_layer=True), 'n_layer = True'),
        (SETTINGS | dict(d_model=-8), 'd_model = -8'),
        (SETTINGS | dict(cutoffs=3), 'cutoffs = 3'),
        (SETTINGS | dict(cutoffs=[[]]), r'cutoffs\[0\]'),
        (SETTINGS | dict(dropout='much'), 'not arguments of such a model'),
        (SETTINGS | dict(clamp_len='far'), 'not arguments of such a model'),
        ('[]', 'must be an object'),
        ('null', 'must be an object'),
        ('{', 'not JSON'),
        ('[' * 200_000, 'more than 64 levels'),
    ],
)
def test_arguments_are_not_trusted(settings, message, tmp_path):
    with pytest.raises(UsageError, match=message):
        imported(tmp_path, settings)


def test_weights_of_other_shapes(tmp_path):
    for name, shape in (
        ('layers.0.dec_attn.qkv_net.weight', (25, 8)),
        ('layers.0.dec_attn.o_net.weight', ()),
    ):
        with pytest.raises(UsageError, match='its tensors have other shapes'):
            imported(tmp_path, SETTINGS, SHAPES | {name: shape})
    with pytest.raises(UsageError, match='not a whole safetensors file'):
        imported(tmp_path, SETTINGS, cut=4)
