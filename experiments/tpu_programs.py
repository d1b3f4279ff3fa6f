"""What paper-size training steps need on a TPU slice, read from their compiled programs; no TPU.

python -m experiments.tpu_programs [NAME ...] [--topology=v5p:2x2x2] [--all_layers] [--record]
python -m experiments.tpu_programs 'pg19, fused, all layers (v5e:4x4)'
python -m experiments.tpu_programs --recorded

Every row of `ROWS` is compiled for its slice, with two layers, one of each kind that it has, and all
other sizes as they are: some minutes each. `--all_layers` keeps the layers of the config. The table
is printed with the recorded one (`tpu_programs.json`). The command fails where a step does not fit,
where a bfloat16 model multiplies float32 numbers at the speed of bfloat16, or where bytes, temporaries,
collectives or cycles grow by more than 5 %. `--record` writes the table, and those of `docs/tpu.md`;
`--recorded` prints it, and which rows it lacks, and compiles nothing. Needs the extra `[tpu-aot]`.
"""

import argparse
import dataclasses
import functools
import importlib
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from experiments import markdown, program_bytes, provenance, tpu_cycles
from longmem_jax import files

TABLE = Path(__file__).with_suffix('.json')
PAGE = TABLE.parent.parent / 'docs' / 'tpu.md'
FUSED = {'kernels': 'fused'}
APPROXIMATE = {'memorizing.search': 'approximate'}
# By chip: bfloat16 operations and bytes per second, of its data sheet, and cycles per second.
PEAKS = {
    'v5e': (197e12, 819e9, 1.5e9),
    'v5p': (459e12, 2765e9, 1.75e9),
    'v6e': (918e12, 1640e9, 1.75e9),
}


@dataclasses.dataclass(frozen=True)
class Row:
    """A configuration that is compiled.

    Attributes:
      config: file of `configs`, with its argument after a colon.
      settings: by name in `config.model`, what differs from it.
      topology: slice, of as many chips as the lanes of the config divide over.
      encoder: by name in `config.model`, the number of layers of an encoder, which are two as well.
      note: of docs/tpu.md.
      others: by path in `config`, what differs elsewhere.
    """

    config: str
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    topology: str = 'v5e:4x4'
    encoder: str = ''
    note: str = ''
    others: dict[str, Any] = dataclasses.field(default_factory=dict)


# To compile sooner. XLA counts the largest size, which is that of the config.
TWO_SIZES = {'expire_span.num_sizes': 2}
EIGHT = 'v5e:2x4'
# A lane for each of 256 chips, or of 256 times four.
A_LANE = {'train.num_lanes': 256, 'evaluate.num_lanes': 256}
ENCODER = 'seq2seq.num_encoder_layers'
ROWS = {
    'pg19': Row('pg19'),
    'pg19, fused': Row('pg19', FUSED),
    'pg19, fused, rbg': Row('pg19', FUSED, others={'train.prng': 'rbg'}),
    'pg19, fused, pod': Row('pg19', FUSED, 'v5e:16x16', others=A_LANE),
    'pg19, fused, pod of v6e': Row('pg19', FUSED, 'v6e:16x16', others=A_LANE),
    'pg19, fused, pod of v5p': Row('pg19', FUSED, 'v5p:8x8x16', others=A_LANE | {'mesh.tensor': 4}),
    'infini_pg19, fused, pod': Row(
        'infini_pg19', FUSED, 'v5e:16x16', note='(0)', others={'mesh.tensor': 4}
    ),
    'infini_pg19': Row('infini_pg19', note='(0)'),
    'infini_pg19, fused': Row('infini_pg19', FUSED, note='(0)'),
    'memorizing_pg19': Row('memorizing_pg19', note='(3)'),
    'memorizing_pg19, fused': Row('memorizing_pg19', FUSED),
    'memorizing_pg19, 65k': Row('memorizing_pg19:size=65536', note='(3)'),
    'memorizing_pg19, 65k, fused': Row('memorizing_pg19:size=65536', FUSED),
    'memorizing_pg19, approximate': Row('memorizing_pg19', APPROXIMATE),
    'memorizing_pg19, 65k, approximate': Row('memorizing_pg19:size=65536', APPROXIMATE),
    'expire_span_enwik8, 2 sizes': Row('expire_span_enwik8', TWO_SIZES, note='(2) (4)'),
    'expire_span_enwik8, 2 sizes, fused': Row('expire_span_enwik8', TWO_SIZES | FUSED, note='(2)'),
    'expire_span_enwik8, fused': Row('expire_span_enwik8', FUSED),
    'expire_span_pg19, 2 sizes, fused': Row('expire_span_pg19', TWO_SIZES | FUSED, note='(2)'),
    'expire_span_wikitext103, 2 sizes, fused': Row(
        'expire_span_wikitext103', TWO_SIZES | FUSED, note='(2)'
    ),
    'adaptive_span_enwik8, fused': Row('adaptive_span_enwik8', FUSED, note='(6)'),
    'infinity_former_pg19, fused': Row('infinity_former_pg19', FUSED, note='(1)'),
    'infinity_former_wikitext103, fused': Row('infinity_former_wikitext103', FUSED, EIGHT),
    'enwik8, fused': Row('enwik8', FUSED, EIGHT),
    'wikitext103, fused': Row('wikitext103', FUSED),
    'spalm_wikitext103, fused': Row('spalm_wikitext103', FUSED, EIGHT),
    'knn_lm_wikitext103, fused': Row('knn_lm_wikitext103', FUSED, EIGHT),
    'pkm_lm, fused': Row('pkm_lm', FUSED, note='(3)'),
    'slimpajama_340m': Row('slimpajama_340m'),
    **{
        f'slimpajama_340m, {memory}': Row(f'slimpajama_340m:memory={memory}')
        for memory in (
            'delta_net',
            'kimi_delta',
            'retnet',
            'gla',
            'mamba2',
            'rwkv7',
            'ttt_linear',
            'titans',
            'armt',
            'hippocampus',
        )
    },
    'memformer_wikitext103': Row(
        'memformer_wikitext103', encoder='memformer.num_encoder_layers', note='(5)'
    ),
    'mem_transformer_wikitext103': Row('mem_transformer_wikitext103'),
    'mem_transformer_wikitext103, recurrent': Row('mem_transformer_wikitext103:recurrent'),
    'mem_transformer_wmt14': Row('mem_transformer_wmt14', encoder=ENCODER, note='(5)'),
    'memsizer_wikitext103': Row('memsizer_wikitext103', topology=EIGHT),
    'memsizer_wmt16': Row('memsizer_wmt16', encoder=ENCODER, note='(5)'),
}
MORE = 1.05  # than recorded is a problem
LABEL = re.compile(r'(.*?)(, all layers)?(?: \((\S+)\))?')


@dataclasses.dataclass(frozen=True)
class Needs:
    """What a step needs per chip.

    Attributes:
      arguments, temporaries: GiB.
      capacity: GiB of a chip.
      flops: operations for one segment of the update, of the largest branches.
      gigabytes: read and written, by XLA's own count.
      collectives: megabytes that chips exchange in a step, results added up; what is in the body of a
        loop once for every segment. None = the program could not be read, see `text_of`.
      wide_products: float32 products, by the name of the operation, without those that ask for it.
      cycles: millions for one segment with its share of the update, by `tpu_cycles`; None = unknown.
    """

    arguments: float
    temporaries: float
    capacity: float
    flops: float
    gigabytes: float
    collectives: float | None
    wide_products: tuple[str, ...]
    cycles: float | None = None


def two_layers(config: Any) -> Any:
    """The configuration with two layers: the last kinds of attention that it has."""
    model = config.model
    kinds = list(dict.fromkeys(zip(model.attention, model.feed_forward, strict=True)))
    kinds = (kinds * 2)[:2] if len(kinds) < 2 else kinds[-2:]
    model.num_layers = 2
    model.attention, model.feed_forward = (tuple(names) for names in zip(*kinds, strict=True))
    # Memories around or beside blocks are the same for all layers of these configs.
    model.around, model.beside = model.around[: len(kinds)], model.beside[: len(kinds)]
    return config


def configured(name: str, all_layers: bool = False) -> Any:
    """The configuration of a row of `ROWS`, with two layers or with all of them."""
    row = ROWS[name]
    module, _, variants = row.config.partition(':')
    config = importlib.import_module(f'configs.{module}').get_config(variants)
    encoder = {row.encoder: 2} if row.encoder and not all_layers else {}
    of_model = {f'model.{field}': value for field, value in {**row.settings, **encoder}.items()}
    for field, value in {**of_model, **row.others}.items():
        section, _, last = field.rpartition('.')
        functools.reduce(getattr, section.split('.'), config)[last] = value
    return config if all_layers else two_layers(config)


def text_of(compiled: Any) -> str:
    """The compiled program as text; '' where JAX cannot read it, as on v5p.

    With jaxlib 0.10.2 and libtpu 0.0.52: 'async-update instruction should have 1 operands but sees 3'.
    """
    try:
        return compiled.as_text()
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        print(f'The program cannot be read, so its collectives are unknown: {reason}', flush=True)
        return ''


def measure(
    name: str, topology: str, all_layers: bool = False, program_file: Path | None = None
) -> Needs:
    """Compiles a row of `ROWS`, and writes the program to a file if one is given."""
    from longmem_jax.commands.compile import compile_step

    config = configured(name, all_layers)
    with tempfile.TemporaryDirectory() as folder:
        tpu_cycles.keep_bundles(Path(folder))
        compiled, fit = compile_step(config, topology)
        program = tpu_cycles.with_kernels(text_of(compiled), Path(folder))
    if program_file:
        program_file.write_text(program)
    cost = compiled.cost_analysis() or {}
    cycles = sum(tpu_cycles.by_operation(program).values())
    return Needs(
        arguments=round(fit.arguments / 2**30, 3),
        temporaries=round(fit.temporaries / 2**30, 3),
        capacity=round(fit.capacity / 2**30, 2),
        flops=fit.flops / config.train.segments_per_step,
        gigabytes=round(float(cost.get('bytes accessed', 0)) / 1e9, 1),
        collectives=round(
            program_bytes.collectives_of(program, config.train.segments_per_step) / 1e6, 1
        )
        if program
        else None,
        wide_products=program_bytes.wide_products_of(program)
        if config.model.dtype == 'bfloat16'
        else (),
        cycles=round(cycles / config.train.segments_per_step / 1e6, 2) if program else None,
    )


def check(needs: Needs, recorded: Needs | None) -> list[str]:
    """What is worse than recorded, or wrong by itself."""
    found = []
    if 0 < needs.capacity < needs.arguments + needs.temporaries:
        found.append(f'does not fit: {needs.arguments + needs.temporaries:.1f} GiB')
    new = set(needs.wide_products) - set(recorded.wide_products if recorded else ())
    found += [f'float32 product: {name}' for name in sorted(new)]
    for name in ('temporaries', 'gigabytes', 'collectives', 'cycles') if recorded else ():
        before, now = getattr(recorded, name), getattr(needs, name)
        if None not in (before, now) and now > MORE * before:
            found.append(f'{name}: {now:g}, recorded are {before:g}')
    return found


def read_table(path: Path) -> dict[str, Needs]:
    """The recorded table; empty where there is none."""
    content = provenance.saved(path) or {}
    for fields in content.values():
        fields.pop('run', None)
        fields['wide_products'] = tuple(fields['wide_products'])
    return {name: Needs(**fields) for name, fields in content.items()}


def label_of(name: str, topology: str, all_layers: bool = False) -> str:
    """The name of a row in the recorded table."""
    return f'{name}{", all layers" if all_layers else ""} ({topology})'


def parsed(text: str) -> tuple[str, str, bool]:
    """The row, the slice ('' = that of the row) and whether with all layers, of `label_of` or a row.

    Raises:
      ValueError: there is no such row.
    """
    name, all_layers, topology = LABEL.fullmatch(text.strip()).groups()
    if name not in ROWS:
        raise ValueError(f'{name}: no row of this name; allowed are {"; ".join(ROWS)}')
    return name, topology or '', bool(all_layers)


def not_recorded(table: dict[str, Needs]) -> list[str]:
    """Rows that the table does not have for their slice, with two layers."""
    return [name for name, row in ROWS.items() if label_of(name, row.topology) not in table]


def times(label: str, needs: Needs) -> tuple[str, str, str, str]:
    """Milliseconds of compute and of memory at the chip's peaks, of the schedule, and the share of the
    peak that operations reach by it; '' = unknown, 'older' = recorded before all loops were counted.
    """
    chip = re.search(r'\((\w+):', label)
    peaks = PEAKS.get(chip[1] if chip else '')
    if peaks is None:
        return '', '', '', ''
    compute, memory = 1e3 * needs.flops / peaks[0], 1e12 * needs.gigabytes / peaks[1]
    if not needs.cycles:
        return (
            f'{compute:.1f}',
            f'{memory:.1f}',
            'unknown' if needs.collectives is None else 'older',
            '',
        )
    scheduled = 1e9 * needs.cycles / peaks[2]
    return f'{compute:.1f}', f'{memory:.1f}', f'{scheduled:.1f}', f'{compute / scheduled:.0%}'


def _shown(number: float | None) -> str:
    return 'unknown' if number is None else f'{number:g}'


def shown(tables: dict[str, Needs]) -> str:
    """A Markdown table."""
    names = ('arguments', 'temporaries', 'gigabytes', 'collectives')
    rows = [
        [
            label,
            *(_shown(getattr(needs, name)) for name in names),
            f'{needs.flops / 1e12:.2f}',
            *times(label, needs),
        ]
        for label, needs in tables.items()
    ]
    heads = [
        'step', 'arguments, GiB', 'temporaries, GiB', 'moved, GB', 'exchanged, MB',
        'operations, 1e12', 'compute, ms', 'memory, ms', 'scheduled, ms', 'share of peak',
    ]  # fmt: skip
    return markdown.table(heads, rows)


def rendered(page: str, table: dict[str, Needs]) -> str:
    """A page with the tables of two and of all layers below its two comments, which name them."""
    order = list(ROWS)
    tables: dict[str, dict[str, Needs]] = {'two': {}, 'all': {}}
    for label in sorted(table, key=lambda label: order.index(parsed(label)[0])):
        name, _, all_layers = parsed(label)
        note = '(8)' if all_layers else ROWS[name].note
        tables['all' if all_layers else 'two'][f'{label} {note}'.rstrip()] = table[label]
    for layers, needs in tables.items():
        mark = f'<!-- experiments.tpu_programs: {layers} layers -->\n\n'
        before, found, after = page.partition(mark)
        if not found:
            raise ValueError(f'{PAGE}: has no line {mark.strip()}')
        page = before + mark + shown(needs) + '\n' + re.sub(r'\A(\|.*\n)*', '', after)
    return page


def write_page() -> None:
    """Writes the recorded tables into the page."""
    PAGE.write_text(rendered(PAGE.read_text(), read_table(TABLE)))


def main() -> None:
    """Prints and compares the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
    parser.add_argument('names', nargs='*', metavar='NAME', help='; '.join(ROWS))
    parser.add_argument('--topology', default='', help='default: that of each row')
    parser.add_argument('--all_layers', action='store_true')
    parser.add_argument('--record', action='store_true')
    parser.add_argument('--recorded', action='store_true')
    parser.add_argument(
        '--write_page', action='store_true', help=f'only: the tables of {PAGE.name}'
    )
    parser.add_argument('--program', type=Path, help='file for the program of a row, as text')
    options = parser.parse_args()
    if options.write_page:
        write_page()
        return
    if options.recorded:
        table = read_table(TABLE)
        print(shown(table))
        if missing := not_recorded(table):
            print(f'Not recorded: {"; ".join(missing)}.')
        return
    try:
        rows = [parsed(text) for text in options.names or ROWS]
    except ValueError as error:
        parser.error(str(error))
    if options.program and len(options.names) != 1:
        parser.error('--program: one file is for one row, give the name of one')
    wrong = []
    for name, given, all_layers in rows:
        topology = given or options.topology or ROWS[name].topology
        all_layers |= options.all_layers
        label = label_of(name, topology, all_layers)
        needs = measure(name, topology, all_layers, options.program)
        recorded = read_table(TABLE)
        before = recorded.get(label)
        wrong += [f'{label}: {problem}' for problem in check(needs, before)]
        compared = {f'recorded: {label}': before} if before else {}
        print(shown(compared | {label: needs}), flush=True)
        if not before and not options.record:
            print(f'{label}: nothing to compare with; add --record to write it down.', flush=True)
        if options.record:
            kept = provenance.saved(TABLE) or {}
            run = provenance.of_run([], device=f'compiled for {topology}')
            files.write_json(TABLE, kept | {label: {'run': run, **dataclasses.asdict(needs)}})
            write_page()
    if wrong:
        sys.exit('\n'.join(wrong))


if __name__ == '__main__':
    main()
