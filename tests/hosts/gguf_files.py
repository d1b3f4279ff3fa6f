"""Tiny GGUF files, and their logits by transformers: `python -m tests.hosts.gguf_files`.

It needs the packages gguf, torch, transformers and accelerate, and writes `tests/goldens/gguf`: all four
architectures with 32 and 16 bits, and one with blocks of every type that is in common use.
"""

import json
from pathlib import Path

import numpy as np
from tokenizers import pre_tokenizers

FOLDER = Path(__file__).parent.parent / 'goldens' / 'gguf'
BLOCKS = FOLDER / 'blocks'
MERGES = ['\u0120 t', 'h e', '\u0120t he', 'i n', '\u0120 a', 'e r', '1 2', '\u0120a n']
SPECIAL = ['<|begin|>', '<|end|>', '<|turn|>', '<tool>', '[PAD]']
KINDS = [3, 3, 3, 4, 5]  # control, user defined, unused
TOKENS = [
    *sorted(pre_tokenizers.ByteLevel.alphabet()), *(m.replace(' ', '') for m in MERGES), *SPECIAL
]  # fmt: skip
TEMPLATE = (
    '{% for m in messages %}<|begin|>{{ m.role }}\n{{ m.content }}<|end|>{% endfor %}<|begin|>'
)
# What the architectures have in common, and what each has by itself.
SIZES = dict(layers=2, width=32, heads=4, kv_heads=2, head=8, dense=48, context=64)
MODELS = {
    'llama': dict(pre='llama-bpe'),
    'qwen2': dict(pre='qwen2', head_of_output=True),
    'qwen3': dict(pre='qwen2', layers=1, heads=2, kv_heads=1, head=128),
    'gpt2': dict(pre='gpt-2', context=1024),  # transformers takes no other length of a GPT-2
}
# Rows of 256 numbers, which the larger blocks need, are in the feed-forward layers alone.
OF_BLOCKS = dict(width=64, head=16, dense=256, layers=3)
TYPES = dict(
    attn_q='Q4_0', attn_k='Q8_0', attn_v='Q4_1', attn_output='Q5_0', ffn_gate='Q5_1', ffn_up='Q8_0',
    token_embd='Q8_0',
)  # fmt: skip
LARGE_BLOCKS = ('Q4_K', 'Q6_K', 'Q5_K')  # of `ffn_down`, by layer


def arrays_of(kind, sizes, rng):
    """Name to a random array, as the file has them: [out, in]."""
    width, dense = sizes['width'], sizes['dense']

    def matrix(rows, columns):
        return rng.normal(size=(rows, columns)).astype(np.float32) / columns**0.5

    def vector(size, middle=0.0):
        return (middle + 0.1 * rng.normal(size=size)).astype(np.float32)

    made = {'token_embd.weight': matrix(len(TOKENS), width) * 4}
    made['output_norm.weight'] = vector(width, 1.0)
    if kind == 'gpt2':
        made |= {'position_embd.weight': matrix(sizes['context'], width)}
        made |= {'output_norm.bias': vector(width)}
    if sizes.get('head_of_output'):
        made['output.weight'] = matrix(len(TOKENS), width)
    query, key = sizes['heads'] * sizes['head'], sizes['kv_heads'] * sizes['head']
    maps = dict(
        attn_q=(query, width), attn_k=(key, width), attn_v=(key, width), attn_output=(width, query),
        ffn_gate=(dense, width), ffn_up=(dense, width), ffn_down=(width, dense),
    )  # fmt: skip
    if kind == 'gpt2':
        maps = dict(
            attn_qkv=(3 * width, width), attn_output=(width, width), ffn_up=(dense, width),
            ffn_down=(width, dense),
        )  # fmt: skip
    biased = dict(gpt2=maps, qwen2=('attn_q', 'attn_k', 'attn_v')).get(kind, ())
    for layer in range(sizes['layers']):
        start = f'blk.{layer}.'
        for name in ('attn_norm', 'ffn_norm'):
            made[f'{start}{name}.weight'] = vector(width, 1.0)
            if kind == 'gpt2':
                made[f'{start}{name}.bias'] = vector(width)
        if kind == 'qwen3':
            made[f'{start}attn_q_norm.weight'] = vector(sizes['head'], 1.0)
            made[f'{start}attn_k_norm.weight'] = vector(sizes['head'], 1.0)
        for name, shape in maps.items():
            made[f'{start}{name}.weight'] = matrix(*shape)
            if name in biased:
                made[f'{start}{name}.bias'] = vector(shape[0])
    return made


def random_blocks(kind, shape, rng):
    """Blocks of any bits, but with small scales."""
    import gguf

    numbers, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    blocks = rng.integers(0, 256, (*shape[:-1], shape[-1] // numbers, size), np.uint8)
    scales = np.float16(rng.uniform(1e-4, 2e-4, (*blocks.shape[:-1], 2))).view(np.uint8)
    if kind == 'Q6_K':
        blocks[..., -2:] = scales[..., :2]
    else:
        blocks[..., :4] = scales
    return blocks.reshape(*shape[:-1], -1)


def write(path, kind, blocks=False, tensors=None, metadata=None):
    """Writes a model with the package's own writer.

    Args:
      path: the file.
      kind: one of `MODELS`.
      blocks: numbers in blocks instead of 32 and 16 bits.
      tensors: name to other arrays.
      metadata: name to (value, type), instead of others.
    """
    import gguf

    given, rng = MODELS[kind], np.random.default_rng(len(kind))
    sizes = SIZES | given | (OF_BLOCKS if blocks else {})
    writer = gguf.GGUFWriter(path, kind)
    writer.add_name(f'tiny {kind}')
    writer.add_block_count(sizes['layers'])
    writer.add_context_length(sizes['context'])
    writer.add_embedding_length(sizes['width'])
    writer.add_feed_forward_length(4 * sizes['width'] if kind == 'gpt2' else sizes['dense'])
    writer.add_head_count(sizes['heads'])
    if kind == 'gpt2':
        writer.add_layer_norm_eps(1e-5)
        sizes['dense'] = 4 * sizes['width']
        sizes['kv_heads'] = sizes['heads']
    else:
        writer.add_head_count_kv(sizes['kv_heads'])
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_rope_freq_base(5000.0)
        writer.add_vocab_size(len(TOKENS))
        if sizes['head'] * sizes['heads'] != sizes['width']:
            writer.add_key_length(sizes['head'])
            writer.add_value_length(sizes['head'])
    writer.add_tokenizer_model('gpt2')
    writer.add_tokenizer_pre(given['pre'])
    writer.add_token_list(TOKENS)
    writer.add_token_types([1] * (len(TOKENS) - len(KINDS)) + KINDS)
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(TOKENS.index('<|begin|>'))
    writer.add_eos_token_id(TOKENS.index('<|end|>'))
    writer.add_eot_token_id(TOKENS.index('<|turn|>'))
    writer.add_chat_template(TEMPLATE)
    for name, (value, sort) in (metadata or {}).items():
        writer.add_key_value(name, value, gguf.GGUFValueType[sort])
    for name, array in (arrays_of(kind, sizes, rng) | (tensors or {})).items():
        part = name.split('.')[-2]
        if blocks and part == 'ffn_down':
            sort = LARGE_BLOCKS[int(name.split('.')[1])]
            data = random_blocks(sort, array.shape, rng)
        else:
            usual = 'BF16' if part == 'attn_v' else 'F16'
            sort = (TYPES.get(part, 'F32') if blocks else usual) if array.ndim > 1 else 'F32'
            data = gguf.quantize(array, gguf.GGMLQuantizationType[sort])
        writer.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType[sort])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def logits(path, tokens):
    """Of transformers, float32 [batch, length, vocabulary]."""
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    )
    with torch.no_grad():
        return model.eval()(torch.asarray(tokens))[0].numpy()


def main():
    """Writes all files."""
    import transformers

    tokens = np.random.default_rng(0).integers(0, 256, (2, 12))
    for kind, folder in [*((kind, FOLDER) for kind in MODELS), ('llama', BLOCKS)]:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f'{kind}.gguf'
        write(path, kind, blocks=folder == BLOCKS)
        given = dict(system=kind, hf=path.name, source=f'transformers {transformers.__version__}')
        arrays = {'in/tokens': tokens, 'out/logits': logits(path, tokens)}
        np.savez_compressed(path.with_suffix('.npz'), config_json=json.dumps(given), **arrays)


if __name__ == '__main__':
    main()
