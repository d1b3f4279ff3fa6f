"""Every memory as a layer of another model: linen, nnx, scanned, differentiated, padded."""

import functools
import inspect
import pickle

import flax.errors
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import longmem_jax
from longmem_jax.errors import UsageError
from longmem_jax.layers.dropout import asking_for_keys
from longmem_jax.memory.checks import TURNS
from longmem_jax.memory.registry import LAYERS
from longmem_jax.named import class_names
from longmem_jax.nnx import wrap
from longmem_jax.standalone import OF_MODEL
from tests.toys import OWN_CODE, drawn

WIDTH, LENGTH, BATCH = 16, 4, 2


def small(name, **changes):
    """The entry's layer at the sizes of its toy, through the public interface."""
    entry = LAYERS[name]
    make = getattr(longmem_jax, entry.layer.module.__name__)
    kernels = {} if name == 'product_key' else dict(init_std=0.3)  # tables of its own
    fields = dict(num_heads=2) | kernels | entry.toy | changes
    return make(d_model=WIDTH, head_dim=8, segment_length=LENGTH, **fields)


def inputs(segments=3, seed=0):
    return jax.random.normal(jax.random.key(seed), (segments, BATCH, LENGTH, WIDTH))


@functools.cache
def initialised(name):
    """The layer of `small`, and its parameters."""
    layer = small(name)
    x, state = inputs()[0], layer.start(BATCH)
    return layer, drawn(lambda: layer.init(jax.random.key(1), x, state))


@pytest.mark.slow
@pytest.mark.parametrize('name', OWN_CODE)
def test_every_entry_is_a_layer(name):
    """Jitted, scanned over segments, and differentiated; the state keeps its structure."""
    (layer, params), x = initialised(name), inputs()
    state = layer.start(BATCH)

    @jax.jit
    def loss(params):
        def read(state, x):
            y, state, aux = layer.apply(params, x, state)
            return state, (y, sum(aux.losses.values(), jnp.zeros(())))

        return jax.tree.map(jnp.mean, jax.lax.scan(read, state, x)[1])[0]

    value, gradient = jax.value_and_grad(loss)(params)
    assert jnp.isfinite(value)
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(params))


# A window, sums, rows that expire, a table, what stands around the blocks, and values for later blocks.
QUICK = ('transformer_xl', 'infini', 'expire_span', 'product_key', 'memory_tokens', 'rwkv7')


AROUND = [name for name in OWN_CODE if LAYERS[name].place == 'around']


@pytest.mark.parametrize(
    'name', [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in AROUND]
)
def test_what_goes_round_does_not_grow(name):
    """Of 200 segments; what is carried passes through the layer each time."""
    (layer, params), x = initialised(name), inputs(200)

    @jax.jit
    def sizes(params):
        def read(state, x):
            y, state, _ = layer.apply(params, x, state)
            return state, jnp.abs(y).max()

        return jax.lax.scan(read, layer.start(BATCH), x)[1]

    found = sizes(params)
    assert found[-20:].max() < 3 * found[:20].max(), 'norm what is carried to the next segment'


@pytest.mark.parametrize(
    'name',
    [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in OWN_CODE],
)
def test_padding_and_starts_are_the_layers_own_matter(name):
    """One program; that padding at the end is like a shorter segment is for the conformance suite."""
    (layer, params), x = initialised(name), np.asarray(inputs())
    state = jax.device_get(layer.start(BATCH))
    every, never = np.ones((BATCH, LENGTH), bool), np.zeros((BATCH,), bool)

    @jax.jit
    def compiled(x, state, valid, start):
        return layer.apply(params, x, state, valid=valid, start=start)[:2]

    def read(x, state, valid=every, start=never):
        return jax.device_get(compiled(x, state, valid, start))

    whole, before = read(x[0], state, every & (np.arange(LENGTH) < 3))
    anything = np.full_like(x[1, :, :1], np.nan)
    moved = np.concatenate([anything, x[0, :, :3]], axis=1)
    y, after = read(moved, state, every & (np.arange(LENGTH) > 0))
    padding = 'padding before changed outputs'
    np.testing.assert_allclose(y[:, 1:], whole[:, :3], atol=1e-5, err_msg=padding)
    assert (y[:, 0] == 0).all() and (whole[:, 3] == 0).all(), 'outputs at padding are zero'
    for leaf, other in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        np.testing.assert_allclose(leaf, other, atol=1e-5, err_msg='padding was written')
    _, full = read(x[0], state)
    reset, _ = read(x[1], full, start=np.asarray([True, False]))
    fresh, _ = read(x[1], state)
    np.testing.assert_allclose(reset[0], fresh[0], atol=1e-5, err_msg='start did not reset')


@pytest.mark.parametrize(
    'name',
    [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in OWN_CODE],
)
def test_every_layer_asks_for_the_key_of_its_dropout(name):
    """Whether it is drawn shows without compiling; the next test runs it."""
    layer, x = small(name, dropout=0.5), np.zeros((BATCH, LENGTH, WIDTH), np.float32)
    state, key = jax.eval_shape(lambda: layer.start(BATCH)), jax.random.key(2)
    params = jax.eval_shape(layer.init, key, x, state)

    def read(rngs, train):
        rngs |= {'memory': key}
        return jax.eval_shape(
            lambda *given: layer.apply(*given, train=train, rngs=rngs), params, x, state
        )

    read({'dropout': key}, True)
    read({}, False)
    with pytest.raises(
        flax.errors.InvalidRngError,
        match=r"""needs PRNG for "dropout" .*: in training 'dropout' needs a key; give rngs={'drop""",
    ):
        read({}, True)


def test_the_message_of_a_missing_key_is_of_its_stream():
    """That of `memory`, in nnx too; of another stream it is Flax's own."""
    for stream in ('memory', 'noise', 'params'):
        hinted = stream == 'memory'
        with pytest.raises(
            flax.errors.InvalidRngError, match=f'needs PRNG for "{stream}"'
        ) as found:
            with asking_for_keys():
                raise flax.errors.InvalidRngError(f'inner needs PRNG for "{stream}"')
        assert (f"in training '{stream}' needs a key" in str(found.value)) == hinted
        assert 'in training' not in str(found.value) or hinted
    memory = wrap(small('infini', dropout=0.5), rngs=nnx.Rngs(0))
    x, state = inputs()[0], memory.start(BATCH)
    with pytest.raises(flax.errors.InvalidRngError, match='in nnx Rngs.dropout=0, memory=1'):
        memory(x, state, train=True, rngs=nnx.Rngs(memory=1))
    memory(x, state, train=True, rngs=nnx.Rngs(dropout=0, memory=1))


@pytest.mark.slow
@pytest.mark.parametrize('name', OWN_CODE)
def test_dropout_changes_the_output_of_every_layer_in_training(name):
    (plain, params), x = initialised(name), inputs()[0]
    layer = small(name, dropout=0.5)
    state, key = layer.start(BATCH), jax.random.key(2)

    @functools.partial(jax.jit, static_argnames=('layer', 'train'))
    def read(key, *, layer, train):
        rngs = {'memory': jax.random.key(0), 'dropout': key}
        return layer.apply(params, x, state, train=train, rngs=rngs)[0]

    first, again, other = (
        read(key, layer=layer, train=True) for key in (key, key, jax.random.key(3))
    )
    np.testing.assert_array_equal(first, again)
    assert 0.1 < np.mean(np.asarray(first) == 0) < 0.9, f'{name}: dropout drops what it returns'
    assert np.abs(first - other).max() > 0, f'{name}: dropout does not depend on its key'
    evaluated = read(key, layer=layer, train=False)
    np.testing.assert_array_equal(evaluated, read(key, layer=plain, train=False))


@pytest.mark.parametrize('name', OWN_CODE)
@pytest.mark.slow
def test_every_entry_is_a_layer_of_nnx(name):
    layer, x = small(name), inputs()[0]
    memory = nnx.jit(lambda: wrap(layer, rngs=nnx.Rngs(0)))()
    state = memory.start(BATCH)
    optimizer = nnx.Optimizer(memory, optax.sgd(0.1), wrt=nnx.Param)

    @nnx.jit
    def step(memory, optimizer, x, state):
        def loss(memory):
            y, after, _ = memory(x, state, start=jnp.ones((BATCH,), bool))
            return jnp.square(y).mean(), after

        (value, after), gradient = nnx.value_and_grad(loss, has_aux=True)(memory)
        optimizer.update(memory, gradient)
        return value, after

    first, after = step(memory, optimizer, x, state)
    second, _ = step(memory, optimizer, x, state)
    assert jax.tree.structure(after) == jax.tree.structure(state)
    assert second < first, f'{name}: a step of gradient descent did not lower the loss'


def test_nnx_says_what_streams_are():
    with pytest.raises(
        UsageError, match=r'rngs = 0: must be random streams, such as nnx.Rngs\(0\)'
    ):
        wrap(small('infini'), rngs=0)


@pytest.mark.parametrize('layer', [3, longmem_jax.InfiniAttention])
def test_nnx_says_what_a_layer_is(layer):
    with pytest.raises(UsageError, match=r'layer = .*: must be a layer, such as InfiniAttention\('):
        wrap(layer, rngs=nnx.Rngs(0))


def test_nnx_takes_a_key():
    layer, x = small('infini'), inputs()[0]
    found = [
        wrap(layer, rngs=rngs)(x, layer.start(BATCH))[0]
        for rngs in (jax.random.key(0), nnx.Rngs(0))
    ]
    assert found[0].shape == found[1].shape and jnp.isfinite(found[0]).all()


def test_nnx_scans_segments():
    """The way that the docstring of `longmem_jax.nnx` shows; equal to a loop."""
    memory, x = nnx.jit(lambda: wrap(small('infini'), rngs=nnx.Rngs(0)))(), inputs()
    one = nnx.jit(lambda memory, x, state: memory(x, state)[:2])

    @nnx.scan(in_axes=(None, nnx.Carry, 0), out_axes=(nnx.Carry, 0))
    def read(memory, state, x):
        y, state, _ = memory(x, state)
        return state, y

    _, scanned = read(memory, memory.start(BATCH), x)
    state = memory.start(BATCH)
    for segment, found in zip(x, scanned, strict=True):
        y, state = one(memory, segment, state)
        np.testing.assert_allclose(found, y, atol=1e-5)


def test_a_layer_stands_in_a_linen_model():
    import flax.linen as nn

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x, state):
            y, state, _ = small('infini')(nn.LayerNorm()(x), state)
            return x + y, state

    x = inputs()[0]
    state = small('infini').start(BATCH)
    y, variables = jax.jit(Model().init_with_output)(jax.random.key(0), x, state)
    assert y[0].shape == x.shape and jax.tree.leaves(variables)


def test_batches_are_sharded_over_a_mesh():
    """Same numbers on 8 devices; a mesh of explicit axes, JAX's default, is refused in words."""
    layer = small('infini')
    x = jax.random.normal(jax.random.key(0), (8, LENGTH, WIDTH))
    state, start = layer.start(8), jnp.arange(8) % 2 == 0
    params = jax.jit(layer.init)(jax.random.key(1), x, state)
    alone, _, _ = jax.jit(layer.apply)(params, x, state, start=start)

    def on(kind):
        mesh = jax.make_mesh((8,), ('data',), axis_types=(kind,))
        place = NamedSharding(mesh, PartitionSpec('data'))
        given = jax.device_put((x, state, start), place)
        with jax.set_mesh(mesh):
            return jax.jit(layer.apply)(params, given[0], given[1], start=given[2])[0]

    np.testing.assert_allclose(on(AxisType.Auto), alone, atol=1e-6)
    with pytest.raises(ValueError, match='Make the mesh with jax.make_mesh'):
        on(AxisType.Explicit)


def test_training_draws_dropout():
    layer, x = small('local', dropout=0.5, attention_dropout=0.5), inputs()[0]
    params = jax.jit(layer.init)(jax.random.key(1), x, layer.start(BATCH))

    @jax.jit
    def run(seed):
        rngs = {'dropout': jax.random.key(seed)}
        return layer.apply(params, x, layer.start(BATCH), train=True, rngs=rngs)[0]

    assert jnp.abs(run(0) - run(1)).max() > 0
    np.testing.assert_array_equal(run(0), run(0))


def test_help_shows_the_memorys_own_fields_first_and_the_call():
    names = list(inspect.signature(longmem_jax.InfiniAttention).parameters)
    own = [names.index(name) for name in LAYERS['infini'].defaults()]
    assert max(own) < names.index('settings') and names.index('dropout') < min(own)
    told = inspect.getdoc(longmem_jax.InfiniAttention)
    assert '\n    y, state, aux = layer.apply(variables, x, state)' in told
    assert '\n  gate_init: ' in told and '\n  dropout: ' in told and '\nRaises ' in told
    kinds = inspect.signature(longmem_jax.InfiniAttention).parameters
    assert kinds['gate_init'].annotation is float and kinds['d_model'].annotation is int


def test_names_are_all_and_documented():
    others = {'Layer', 'make_layer', *longmem_jax.MODULES}
    assert {*class_names()} | others == {*longmem_jax.__all__} < {*dir(longmem_jax)}
    found = {}
    exec('from longmem_jax import *', found)
    assert {*class_names()} < {*found}
    for name in class_names():
        make = getattr(longmem_jax, name)
        parameters = inspect.signature(make).parameters
        assert {'d_model', 'num_heads', 'segment_length', 'dtype', 'dropout'} <= set(parameters)
        assert 'Attributes' in make.__doc__ or name in ('NormalizedXL', 'ChannelMixing')
        assert pickle.loads(pickle.dumps(make)) is make
    assert longmem_jax.__version__.count('.') == 2
    for wrong, meant in (
        ('InfinitAttention', 'InfiniAttention'), ('Rwkv7', 'RWKV7'), ('Infini', 'InfiniAttention'),
        ('infini', 'InfiniAttention'), ('Moba', 'ChunkRetrieval'), ('gated_delta_net', 'DeltaNet'),
    ):  # fmt: skip
        with pytest.raises(AttributeError, match=f"attribute '{wrong}'; did you mean '{meant}'"):
            getattr(longmem_jax, wrong)


@pytest.mark.parametrize(
    'arguments, message',
    [
        (dict(rul='delta'), "did you mean 'rule'"),
        (dict(rule='gamma'), 'allowed are linear, delta'),
        (dict(epsilon=-1.0), 'epsilon = -1.0: must be above 0'),
        (dict(epsilon='small'), "epsilon: must be a float, got 'small'"),
        (dict(head_dim=7, position='rotary'), 'head_dim = 7: rotary needs an even number'),
        (dict(num_heads=3), 'num_heads = 3: must divide d_model = 16'),
        (dict(num_heads=0), 'num_heads = 0: must be at least 1'),
        (dict(num_heads='2'), "num_heads: must be an int, got '2'"),
        (dict(num_kv_heads=3), 'num_kv_heads = 3: must be 0, as many as heads'),
        (dict(segment_length=0), 'segment_length = 0: must be at least 1'),
        (dict(dtype='float17'), "dtype = 'float17': did you mean 'bfloat16'"),
        (dict(dropout=2.0), 'dropout = 2.0: must lie between 0 and 1'),
        (
            dict(rotary_bands=np.ones(2)),
            r'rotary_bands = \(1.0, 1.0\): a tuple of two rising numbers',
        ),
        (dict(rotary_bands=jnp.arange(2)), r'rotary_bands = \(0, 1\): .*such as \(1.0, 4.0\)'),
        (dict(rotary_bands=5), 'rotary_bands = 5: a tuple of two rising numbers'),
        (dict(rotary_bands={1: 4}), 'rotary_bands = {1: 4}: a tuple of two'),
        (dict(rotary_bands=(1, np.inf)), r'rotary_bands = \(1, inf\): .* from 1e-30 to 1e\+30 is'),
        (dict(rotary_bands=(10**400, 10**401)), 'from 1e-30 to 1e'),
        (dict(rotary_bands=(1e-320, 2)), 'from 1e-30 to 1e'),
        (dict(rotary_bands=(True, 4)), r'rotary_bands = \(True, 4\): a tuple of two'),
        (dict(rotary_bands=(0.5, True)), r'rotary_bands = \(0.5, True\): a tuple of two'),
    ],
)
def test_wrong_fields_are_one_message(arguments, message):
    sizes = dict(d_model=16, num_heads=2, segment_length=4)
    with pytest.raises(UsageError, match=message):
        longmem_jax.InfiniAttention(**sizes | arguments)
    with pytest.raises(UsageError, match="did you mean 'infini'"):
        longmem_jax.make_layer('infni', d_model=16, num_heads=2, segment_length=4)
    with pytest.raises(UsageError, match="'delta_net': a recipe of configs for the layer 'delta'"):
        longmem_jax.make_layer('delta_net', d_model=16, num_heads=2, segment_length=4)


@pytest.mark.parametrize(
    'name, unread, read',
    [
        (
            'rwkv7',
            dict(rotary_base=5e5, attention_dropout=0.1, norm='rmsnorm'),
            dict(head_norm='rmsnorm'),
        ),
        (
            'infini',
            dict(cache_tokens=4, num_layers=2),
            dict(attention_dropout=0.1, rotary_base=5e5),
        ),
        ('compressive', dict(rotary_base=5e5), dict(scale_scores=False)),
        ('product_key', dict(init_std=0.5), dict(dropout=0.1)),
    ],
)
def test_settings_that_a_layer_does_not_read_are_refused(name, unread, read):
    """All at once, and none that it reads; their defaults change nothing and may be given."""
    sizes = dict(d_model=16, num_heads=2, segment_length=4)
    with pytest.raises(UsageError, match='does not read it; leave it out') as found:
        longmem_jax.make_layer(name, **sizes, **unread, **read)
    said = str(found.value)
    assert all(f'{field} = ' in said for field in unread), 'memory.alone.settings_read missed one'
    assert not any(f'{field} = ' in said for field in read), 'settings_read did not see a use'
    defaults = {field: OF_MODEL[field] for field in unread}
    assert longmem_jax.make_layer(name, **sizes, **read, **defaults).memory == name
    with pytest.raises(UsageError, match="'nonsense': it has ") as found:
        longmem_jax.make_layer(name, **sizes, **read, nonsense=1)
    listed = str(found.value).partition('it has ')[2].split(', ')
    assert {*read} < {*listed} and not {*unread} & {*listed}, 'lists what is refused'


def test_a_mistyped_size_is_named():
    """Not what is missing then, of a function that the user did not call."""
    with pytest.raises(UsageError, match="'num_head': did you mean 'num_heads'") as found:
        longmem_jax.InfiniAttention(d_model=16, num_head=2, segment_length=4)
    assert 'attention_dropout' in str(found.value) and 'token_std' not in str(found.value)
    with pytest.raises(
        UsageError, match='^InfiniAttention: num_heads, segment_length must be given'
    ):
        longmem_jax.InfiniAttention(d_model=16, name='infini')
    for sizes in ({}, dict(num_heads=2, segment_length=4)):  # RWKV-7 does not read it
        for make in (longmem_jax.Local, longmem_jax.RWKV7):
            with pytest.raises(
                UsageError, match="'rotary_bse': did you mean 'rotary_base'"
            ) as found:
                make(d_model=16, rotary_bse=1e4, **sizes)
        listed = str(found.value).partition('it has ')[2].split(', ')
        assert 'rotary_base' not in listed, 'lists what is refused'


@pytest.mark.parametrize('name', OWN_CODE)
def test_a_layer_of_arrays_and_numpy_numbers_is_the_same_layer(name):
    """Layers are static arguments of jit: they must hash, and equal ones must compile once."""
    plain = small(name)

    def numpy_like(value):
        if isinstance(value, tuple):
            return np.asarray(value)
        return np.int64(value) if type(value) is int else value

    other = small(name, **{field: numpy_like(value) for field, value in plain.fields})
    assert other == plain and hash(other) == hash(plain), 'standalone._plain missed a value'
    assert pickle.loads(pickle.dumps(plain)) == plain


def test_bands_may_be_an_array_of_jax_and_as_far_apart_as_is_allowed():
    yarn = dict(position='rotary', rotary_scaling='yarn', rotary_original=2**62)
    given = small('infini', rotary_bands=jnp.array([1.0, 5.0]), **yarn)
    assert given == small('infini', rotary_bands=(1.0, 5.0), **yarn)
    layer = small('infini', rotary_bands=TURNS, **yarn)
    jax.eval_shape(layer.init, jax.random.key(0), inputs()[0], layer.start(BATCH))


@pytest.mark.parametrize('name', ['infini', 'infinity_former'])
def test_the_output_has_the_type_of_the_layer(name):
    layer = small(name, dtype=jnp.bfloat16)
    x, state = inputs()[0], layer.start(BATCH)
    params = jax.eval_shape(layer.init, jax.random.key(0), x, state)
    y, after, _ = jax.eval_shape(layer.apply, params, x, state)
    assert y.dtype == jnp.bfloat16
    types = [leaf.dtype for leaf in jax.tree.leaves(state)]
    assert types == [leaf.dtype for leaf in jax.tree.leaves(after)], 'a scan needs equal types'


def test_a_wrong_state_says_what_is_needed():
    layer, x = small('transformer_xl'), inputs()[0]
    params = jax.jit(layer.init)(jax.random.key(0), x, layer.start(BATCH))
    for state, message in (
        (None, 'state is NoneType: TransformerXLState of this layer is needed'),
        (small('infini').start(BATCH), 'state is InfiniState: TransformerXLState'),
        (layer.start(BATCH + 1), r'state.hidden is float32 \[3, 6, 16\]: float32 \[2, 6'),
        (
            small('transformer_xl', memory_length=7).start(BATCH),
            r'is float32 \[2, 7, 16\]: float32 \[2, 6, 16\]',
        ),
        (jax.tree.map(jnp.bfloat16, layer.start(BATCH)), 'is bfloat16 .* float32 .* is needed'),
    ):
        with pytest.raises(ValueError, match=message):
            layer.apply(params, x, state)
    with pytest.raises(ValueError, match='train = .* give True or False, static under jit'):
        jax.jit(lambda train: layer.apply(params, x, layer.start(BATCH), train=train))(True)


@pytest.mark.parametrize(
    'name, wrong, said',
    [
        ('full', dict(cache_dtype='int8'), "cache_dtype = 'int8'"),
        ('memformer', dict(norm='x'), "norm = 'x': allowed are layernorm"),
        ('infini', dict(gate_init=float('nan')), 'gate_init = nan: must be a number'),
        ('local', dict(segment_length=2**31), 'segment_length = 2147483648: must be at most'),
    ],
)
def test_what_a_config_refuses_a_layer_refuses(name, wrong, said):
    with pytest.raises(UsageError, match=said):
        longmem_jax.make_layer(name, **dict(d_model=16, num_heads=2, segment_length=4) | wrong)


@pytest.mark.parametrize('number', [0, -1, 2.0, '2', True, [2]])
def test_a_wrong_number_of_rows_is_refused(number):
    with pytest.raises(ValueError, match='must be a whole number of at least 1'):
        small('local').start(number)


def test_wrong_shapes_say_what_is_needed():
    layer, x = small('local'), inputs()[0]
    params = jax.jit(layer.init)(jax.random.key(0), x, layer.start(BATCH))
    for bad, message in (
        (dict(x=jnp.zeros((2, LENGTH + 1, WIDTH))), '1 to 4 tokens .segment_length.'),
        (dict(x=jnp.zeros((2, 0, WIDTH))), 'leave out segments without any'),
        (dict(x=jnp.zeros((2, LENGTH, WIDTH + 1))), 'length, 16'),
        (dict(x=x.astype(complex)), 'x is complex.*: must be real'),
        (dict(valid=jnp.ones((2, LENGTH))), 'valid is float32'),
        (dict(start=jnp.ones((1,), bool)), r'start is bool \[1\]: must be bool \[2\]'),
        (dict(start=[True, False]), "start is of <class 'list'>: must be an array"),
    ):
        given = dict(x=x) | bad
        with pytest.raises(ValueError, match=message):
            layer.apply(params, given.pop('x'), layer.start(BATCH), **given)


def test_the_usual_value_of_a_setting_is_not_refused():
    assert longmem_jax.make_layer(
        'local', d_feed_forward=128, d_model=32, num_heads=2, segment_length=8
    )
