"""The tasks that `config.data.source` may name."""

from typing import Any

from longmem_jax.data.tasks import collision, copy_task, instruction, recall, sorting

# name -> (corpus of a split, faults of its fields, vocabulary)
TASKS: dict[str, tuple[Any, Any, Any]] = {
    'collision': (collision.Collision, collision.check, collision.vocabulary),
    'copy': (copy_task.Copy, copy_task.check, copy_task.vocabulary),
    'instruction': (instruction.Instruction, instruction.check, instruction.vocabulary),
    'recall': (recall.Recall, recall.check, recall.vocabulary),
    'sorting': (sorting.Sorting, sorting.check, sorting.vocabulary),
}
