"""Any task of lm-eval on a run: `pip install 'longmem_jax[eval]'`.

python -m longmem_jax.hosts.commands.lm_eval --workdir=DIR --tasks=blimp,lambada_openai
python -m longmem_jax.hosts.commands.lm_eval --workdir=DIR --include_path=FOLDER --local --tasks=my_task

Tasks are lm-eval's own (which download their data) or YAML files of `--include_path=`; with `--local`
only the latter are known, which starts faster. A context of any length is read into memory, once for all
requests that share it. Prints lm-eval's table; WORKDIR/lm_eval.json has its results as it writes them.
`--config=configs/host.py:path=FOLDER,memory=none` with a new workdir is a pretrained model as it is;
with `--apply_chat_template` it is asked as in a chat.
"""

import json
import math
from pathlib import Path
from typing import Any

from absl import flags

from longmem_jax.commands import entry
from longmem_jax.commands.start_from import newest_parameters
from longmem_jax.errors import UsageError
from longmem_jax.experiment import Experiment
from longmem_jax.files import require_writable, write

if __name__ == '__main__':
    _TASKS = flags.DEFINE_list('tasks', [], 'Names of tasks, groups or tags.')
    _INCLUDE_PATH = flags.DEFINE_string('include_path', '', 'Folder with YAML files of tasks.')
    _LOCAL = flags.DEFINE_bool('local', False, 'Know the tasks of --include_path only.')
    _NUM_FEWSHOT = flags.DEFINE_integer('num_fewshot', None, 'Examples in the context.')
    _CHAT = flags.DEFINE_bool('apply_chat_template', False, 'Ask as the chat template writes it.')
    _MULTITURN = flags.DEFINE_bool(
        'fewshot_as_multiturn', False, 'In a chat, examples are messages of their own.'
    )
    _SYSTEM = flags.DEFINE_string('system_instruction', '', 'The system message of a chat.')
    _LIMIT = flags.DEFINE_float('limit', None, 'Examples per task, or their share below 1.')
    _OUTPUT = flags.DEFINE_string('output', '', 'JSON to write; default WORKDIR/lm_eval.json.')


def evaluate_tasks(
    experiment: Experiment,
    tasks: list[str],
    *,
    include_path: str = '',
    local: bool = False,
    num_fewshot: int | None = None,
    limit: float | None = None,
    output: str = '',
    apply_chat_template: bool = False,
    fewshot_as_multiturn: bool = False,
    system_instruction: str = '',
) -> dict[str, Any]:
    """Runs tasks with the newest checkpoint of an experiment, or with a host that was not trained yet.

    Args:
      experiment: a trained experiment, or one that begins with a host (step 0).
      tasks: names of tasks, groups or tags.
      include_path: folder with YAML files of tasks; '' = none.
      local: know the tasks of `include_path` only.
      num_fewshot: examples in the context; None = what a task says.
      limit: examples per task, or their share below 1; None = all.
      output: JSON to write; '' = lm_eval.json in the workdir.
      apply_chat_template: contexts are messages of a user, written by the chat template of the host.
      fewshot_as_multiturn: then examples are messages of their own, not part of the question.
      system_instruction: then the system message.

    Raises:
      UsageError: lm-eval is not installed, an unknown task, data that cannot be read, a number that
        is none of examples, a file that cannot be written, or as in `newest_parameters`. After all
        scores are written: a task that has none.
    """
    if limit is not None and not 0 < limit < math.inf:
        raise UsageError(
            f'--limit={limit:g}: must be a number of examples, or a share of them below 1.'
        )
    if num_fewshot is not None and num_fewshot < 0:
        raise UsageError(f'--num_fewshot={num_fewshot}: must be a number of examples, 0 or more.')
    chat = dict(fewshot_as_multiturn=fewshot_as_multiturn, system_instruction=system_instruction)
    without = [name for name, value in chat.items() if value and not apply_chat_template]
    if without:
        raise UsageError(
            f'--{without[0]}: is of chats; add --apply_chat_template, or leave it out.'
        )
    include_path = include_path and str(Path(include_path).expanduser())
    if include_path and not Path(include_path).is_dir():
        raise UsageError(f'--include_path={include_path}: there is no such folder.')
    if output:
        require_writable(output, f'--output={output}')
    from longmem_jax.hosts.evaluation import (
        lm_eval,  # here, since it needs a package that is optional
    )

    manager = lm_eval.task_manager(tasks, include_path, local)
    params, step = newest_parameters(experiment, print)
    if not output:
        require_writable(experiment.workdir / 'lm_eval.json', f'--workdir={experiment.workdir}')
    print(f'Scoring step {step:,} of {experiment.workdir} ...')
    model = lm_eval.LongMemLM.of_experiment(experiment, params)
    if apply_chat_template:
        model.chat_template(True)  # a folder without one is said before anything is scored
    try:
        results = lm_eval.simple_evaluate(
            model,
            tasks=tasks,
            num_fewshot=num_fewshot,
            limit=limit,
            task_manager=manager,
            log_samples=False,
            apply_chat_template=apply_chat_template,
            fewshot_as_multiturn=fewshot_as_multiturn,
            system_instruction=system_instruction or None,
        )
    except Exception as error:
        empty = isinstance(error, StopIteration)  # as the package says it
        # A file that is not there, and a template with a field that the data lack.
        of_data = isinstance(error, OSError) or type(error).__module__.startswith(
            ('datasets.', 'jinja2.')
        )
        if not empty and not of_data:
            raise
        said = 'a file is empty' if empty else error.__cause__ or error
        raise UsageError(
            f'--tasks={",".join(tasks)}: their data cannot be read ({said}); look at the files that the '
            'YAML names.'
        ) from error
    print(lm_eval.make_table(results))
    if 'groups' in results:
        print(lm_eval.make_table(results, 'groups'))
    path = Path(output).expanduser() if output else experiment.workdir / 'lm_eval.json'
    write(path, json.dumps(results, indent=2, default=str, ensure_ascii=False) + '\n')
    print(path)
    # The package leaves out metrics that it does not know. Scores are 'metric,filter'; a group may have
    # none of its own.
    groups = {name for name, of in results.get('group_subtasks', {}).items() if of}
    scoreless = [
        name
        for name, scores in results['results'].items()
        if name not in groups and not any(',' in key for key in scores)
    ]
    if scoreless:
        raise UsageError(
            f'--tasks={",".join(scoreless)}: no metric gave a score; look at metric_list in the YAML.'
        )
    return results


def _evaluate_tasks(experiment: Experiment) -> None:
    evaluate_tasks(
        experiment,
        _TASKS.value,
        include_path=_INCLUDE_PATH.value,
        local=_LOCAL.value,
        num_fewshot=_NUM_FEWSHOT.value,
        limit=_LIMIT.value,
        output=_OUTPUT.value,
        apply_chat_template=_CHAT.value,
        fewshot_as_multiturn=_MULTITURN.value,
        system_instruction=_SYSTEM.value,
    )


if __name__ == '__main__':
    entry.command(_evaluate_tasks)
