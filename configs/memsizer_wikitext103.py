r"""MemSizer on WikiText-103, words, adaptive softmax (Zhang and Cai, 2022; the released script).

python -m longmem_jax.main --config=configs/memsizer_wikitext103.py --config.data.path=wikitext-103 \
    --workdir=DIR
32 layers of 1,024, 32 slots, segments of 512 that are read independently, as in the paper; `:carry`
carries the slots from segment to segment. The paper compares with a softmax Transformer,
`:memory=local`, and the linear attentions `:memory=linear` (ELU), `:memory=rfa` and `:memory=t2r`;
`:memory=t2r,convert=DIR` turns the trained `:memory=local` of DIR into T2R. Its ablations: `:slots=8` to
128, `:heads=4`, and `:frozen`, where the memory keys are not trained. `:shift=half` and
`:shift=convolution` show every layer the tokens just before (see `layers/token_shift.py`). Evaluation
windows overlap: the last 256 of 512 tokens are scored. `:tiny` is for two cores.

Not the paper's: `optimizer.name`, `learning_rate`, `schedule`: Adam with one cosine in place of
Nesterov's SGD with restarts, which optax would have to be given by hand. `vocab_size` is rounded up to
divide over devices, `dtype` is bfloat16 in place of float16. Queries, keys and values of the softmax
Transformer and of RFA begin with Xavier's values without their gain of 2**-0.5.
"""

from typing import Any

from longmem_jax.config.base import base, size, two_cores
from longmem_jax.config.recipes import given
from longmem_jax.config.variants import variant, whole_number
from longmem_jax.errors import UsageError

MEMORIES = ('memsizer', 'linear', 'rfa', 't2r')
# T2R's conversion trains queries, keys, values and the feature map, nothing else.
ATTENTION_ONLY = (
    (r'^block_\d+/attention/(projections/(query|key|value)|feature_map)/', 1.0, True),
    ('', 0.0, False),
)


def get_config(arg=''):
    config = base()

    model = config.model
    size(config, layers=32, width=1024, heads=8, feed_forward=4096)
    model.vocab_size = 267_744
    model.pre_norm, model.final_norm = True, False
    model.cutoffs = (20_000, 60_000)
    model.div_val = 4
    model.tie_projections = (True, True, True)
    model.dropout, model.attention_dropout, model.layer_drop = 0.2, 0.1, 0.2
    model.dtype = 'bfloat16'
    model.init = 'glorot_uniform'
    memories = {name: given(chunk=64, carry=False, shift='none') for name in MEMORIES}
    memories['memsizer'].fields.update(query_scale=32.0, write_scale=1.0)
    memories['rfa'].fields.update(redraw=True, guard='clamp', epsilon=1.0)
    memories['local'] = given(position='none')

    def features(slots, size, chunk):
        for name in MEMORIES:
            fields = dict(num_slots=slots) if name == 'memsizer' else dict(size=size)
            memories[name].fields.update(fields, chunk=chunk)

    features(slots=32, size=64, chunk=64)

    config.data.tokenizer.kind = 'words'
    config.data.pieces = 64
    config.optimizer.learning_rate = 2.5e-4
    config.optimizer.schedule = 'cosine'
    config.optimizer.warmup_steps = 16_000
    config.optimizer.clip_norm = 0.1
    config.train.num_steps = 286_000
    config.train.num_lanes = 144  # 3 x 3,072 tokens on 8 devices
    config.train.segment_length = 512
    config.train.log_every = 200
    config.train.evaluate_every = 5000
    config.evaluate.context = 256
    config.evaluate.num_lanes = 8

    def tiny(config):
        """4 layers of 128, 16 slots, some minutes on two cores."""
        size(config, layers=4, width=128, heads=4, feed_forward=512)
        two_cores(config, steps=500, lanes=16, segment=64)
        model.vocab_size = 20_480
        model.final_norm = True
        model.cutoffs = (2000, 8000)
        model.div_val = 2
        model.tie_projections = (False, True, True)
        model.dropout = 0.1
        features(slots=16, size=32, chunk=32)
        # With the gain of the release the shares of the slots begin all equal.
        memories['memsizer'].fields.update(query_scale=0.0, write_scale=0.0)
        config.data.pieces = 16
        config.train.evaluate_every = 100
        config.evaluate.context = 32
        config.evaluate.num_lanes = 1

    def carry(config):
        """Carries sums and slots to the next segment, so windows need not overlap."""
        for name in MEMORIES:
            memories[name].fields.update(carry=True)
        # Sums over earlier segments can only be read with the directions they were written with.
        memories['rfa'].fields.update(redraw=False)
        config.evaluate.context = 0

    def slots(config, number):
        """Another number of slots."""
        memories['memsizer'].fields.update(num_slots=whole_number('slots', number))

    def heads(config, number):
        """Another number of heads, of the same width together."""
        model.num_heads = whole_number('heads', number)
        model.head_dim = model.d_model // model.num_heads

    def frozen(config):
        """The memory keys keep their first values."""
        memories['memsizer'].groups = (('attention/maps/query/', 0.0, False),)

    def shift(config, kind):
        """A view of the tokens just before, for MemSizer and the linear attentions."""
        for name in MEMORIES:
            memories[name].fields.update(shift=kind)

    def convert(config, workdir):
        """T2R from a trained softmax Transformer; only attention is trained."""
        config.train.start_from = workdir
        memories['t2r'].groups = ATTENTION_ONLY

    changes: dict[str, Any] = dict(
        tiny=tiny, carry=carry, slots=slots, heads=heads, frozen=frozen, shift=shift
    )
    changes['convert'] = convert
    variant(config, arg, memory='memsizer', memories=memories, **changes)
    if {'local', 'linear', 'memsizer'} & set(model.attention):
        model.position = 'sinusoidal'
    if 'local' in model.attention:  # has the biases of the others, so that T2R can begin with it
        model.attention_bias = 'all'
    if config.train.start_from and model.get('linear', {}).get('features') != 't2r':
        raise UsageError('convert: only T2R begins with a softmax Transformer; add memory=t2r.')
    return config
