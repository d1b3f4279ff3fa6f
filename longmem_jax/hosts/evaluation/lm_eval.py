"""Runs of this library as a model of lm-eval, the EleutherAI evaluation harness (extra `[eval]`).

    import lm_eval
    import longmem_jax.hosts.evaluation.lm_eval
    lm_eval.simple_evaluate('longmem_jax', model_args='workdir=DIR', tasks=['blimp'])
    lm_eval.simple_evaluate('longmem_jax', model_args='pretrained=FOLDER,memory=moba', tasks=['blimp'])

or `python -m longmem_jax.hosts.commands.lm_eval --workdir=DIR --tasks=blimp`. With a memory there is no
longest context: one of any length is read into memory, a document is scored with the memory carried from
its first token to its last. A plain decoder reads at most its own context, as lm-eval's models do: the
end of a longer text, or windows of a longer document. Contexts that requests share are read once.
"""

import functools
import itertools
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from longmem_jax.commands.start_from import newest_parameters
from longmem_jax.config.files import configure
from longmem_jax.config.saved import saved_config
from longmem_jax.data.conventions import Conventions
from longmem_jax.data.tokenizers import Tokenizer
from longmem_jax.devices import sharding
from longmem_jax.errors import UsageError
from longmem_jax.evaluation.likelihood import Likelihood
from longmem_jax.experiment import Experiment
from longmem_jax.generation.contexts import num_full
from longmem_jax.generation.continuations import complete_texts
from longmem_jax.hosts import chat
from longmem_jax.models.stack import context_of

try:
    from lm_eval import simple_evaluate as simple_evaluate
    from lm_eval.api.model import LM
    from lm_eval.api.registry import register_model
    from lm_eval.tasks import TaskManager
    from lm_eval.utils import make_table as make_table
except ImportError as error:
    raise UsageError(
        f"the package lm-eval is needed: pip install 'longmem_jax[eval]' ({error})."
    ) from error

Pair = tuple[np.ndarray, np.ndarray]
MAX_TOKENS = 256  # of a text to generate, where a task gives no number
# What `generate_until` understands, with the values where a task does not give them.
GENERATION: dict[str, Any] = {
    'until': (), 'max_gen_toks': MAX_TOKENS, 'do_sample': False, 'temperature': 0.0, 'top_k': 0,
    'top_p': 1.0,
}  # fmt: skip


@register_model('longmem_jax')
class LongMemLM(LM):
    """The three methods that all tasks of lm-eval are made of, and those of chats.

    `likelihood.reader.tokens_read` counts the tokens of contexts.
    """

    def __init__(
        self,
        likelihood: Likelihood,
        tokenizer: Tokenizer,
        conventions: Conventions,
        data: Any = None,
    ):
        """Takes parts that are loaded; see `of_experiment`.

        `data` is `config.data`, which says where a chat template is.
        """
        super().__init__()
        self.likelihood, self.tokenizer, self.conventions = likelihood, tokenizer, conventions
        self._data = data

    @classmethod
    def of_experiment(cls, experiment: Experiment, params: Any, batch_size: int = 0) -> 'LongMemLM':
        """The model of an experiment with `params`; `batch_size` 0 = `config.evaluate.num_lanes`.

        Raises:
          UsageError: as in `Likelihood`.
        """
        lanes = batch_size or experiment.config.evaluate.num_lanes
        likelihood = Likelihood(experiment.evaluation_model, params, experiment.mesh, lanes, print)
        conventions = experiment.conventions()
        print(conventions.in_words(experiment.tokenizer))
        return cls(likelihood, experiment.tokenizer, conventions, experiment.config.data)

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: Mapping[str, Any], additional_config: Mapping[str, Any] | None = None
    ) -> 'LongMemLM':
        """A run by its folder, `workdir=DIR`, or a pretrained decoder by its own, `pretrained=FOLDER`.

        `batch_size=N` may be given, and for a decoder what may stand behind the colon of
        `--config=host:path=FOLDER`, such as `memory=moba,segment=256`; without it memory=none.

        Raises:
          UsageError: another argument, no run there or none with a checkpoint, or no such decoder.
        """
        given = {
            name: value
            for name, value in {**arg_dict, **(additional_config or {})}.items()
            if value is not None and name != 'max_batch_size'
        }
        of_run = 'workdir' in given
        unknown = sorted(set(given) - {'workdir', 'batch_size'}) if of_run else []
        if unknown or not (of_run or 'pretrained' in given):
            raise UsageError(
                f'model_args has {", ".join(map(str, given)) or "nothing"}: workdir=DIR is needed, or '
                'pretrained=FOLDER; batch_size=N (texts at a time) is allowed; the device is chosen by '
                'JAX.'
            )
        size = given.pop('batch_size', 0)
        if not str(size).isdigit():
            raise UsageError(f'batch_size = {size}: must be a whole number of texts.')
        if not of_run:
            return cls._of_decoder({'memory': 'none'} | given, int(size))
        workdir = Path(str(given['workdir'])).expanduser()
        config = saved_config(workdir)
        mesh = sharding.make_mesh(config.mesh.to_dict())
        experiment = Experiment(config, workdir, mesh)
        params, _ = experiment.restore_parameters()
        return cls.of_experiment(experiment, params, int(size))

    @classmethod
    def _of_decoder(cls, given: dict[str, Any], batch_size: int) -> 'LongMemLM':
        """A pretrained decoder as it is, with what is put into it."""
        path = given.pop('pretrained')
        # A bare word of the config, such as frozen, is written frozen=True here.
        variants = (
            str(name) if value in (True, 'True', '') else f'{name}={value}'
            for name, value in given.items()
        )
        config = configure(':'.join(('host', ','.join((f'path={path}', *variants)))))
        mesh = sharding.make_mesh(config.mesh.to_dict())
        with tempfile.TemporaryDirectory() as workdir:  # nothing is written
            experiment = Experiment(config, Path(workdir), mesh)
            params, _ = newest_parameters(experiment, print)
            return cls.of_experiment(experiment, params, batch_size)

    @classmethod
    def create_from_arg_string(
        cls, arg_string: str, additional_config: Mapping[str, Any] | None = None
    ) -> 'LongMemLM':
        """As `create_from_arg_obj`, from 'workdir=DIR,batch_size=N'."""
        items = (item.partition('=') for item in filter(None, (arg_string or '').split(',')))
        return cls.create_from_arg_obj({k.strip(): v for k, _, v in items}, additional_config)

    @property
    def tokenizer_name(self) -> str:
        """Names the tokenizer in the harness's caches."""
        return self.tokenizer.fingerprint()

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The source of the chat template, or None if none is wanted; a folder has one.

        Raises:
          UsageError: a template is asked for by name, or as in `apply_chat_template`.
        """
        if isinstance(chat_template, str):
            raise UsageError(
                f'apply_chat_template={chat_template}: must be True; the folder has one template.'
            )
        return self._chats.source if chat_template else None

    @functools.cached_property
    def _chats(self) -> chat.ChatTemplate:
        option = '--apply_chat_template'
        folder = chat.folder_of(self._data, option)
        return chat.load_template(folder, self.conventions.special, option)

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """The text of a conversation, as the template of the tokenizer's folder writes it.

        Args:
          chat_history: messages, each with 'role' and 'content'.
          add_generation_prompt: end with what begins the next message; False: the last message is
            not ended, so that it can be continued.

        Raises:
          UsageError: there is no template, or it refuses the messages.
        """
        template = self._chats
        if add_generation_prompt:
            return template.render(chat_history)
        return template.render_open(chat_history)

    def _encode(self, text: str) -> np.ndarray:
        """Tokens of a text, int32 [n]."""
        return np.asarray(self.tokenizer.encode(text.encode()), np.int32)

    def pair(self, context: str, continuation: str) -> Pair:
        """Tokens of a context, as it is read, and of its continuation.

        A blank at the end of the context belongs to the continuation, and both are encoded as one text,
        as all models of the harness do. Where the tokenizer joins the continuation to the last token of
        the context, so that no token of its own is left, it is encoded by itself: a score of nothing
        would be the best of all.
        """
        stripped = context.rstrip()
        continuation = context[len(stripped) :] + continuation
        tokens = self._encode(stripped)
        added = self._encode(stripped + continuation)[len(tokens) :]
        if continuation and not len(added):
            added = self._encode(continuation)
        # A text that is scored whole follows what stands before it, which is not scored.
        if not len(tokens):
            first = self.conventions.before()
            return first, added[1:] if np.array_equal(added[:1], first) else added
        return self.conventions.read(tokens), added

    def loglikelihood(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """Log-likelihood of continuations, nats, and whether each is what greedy decoding writes."""
        scores = self.likelihood([self.pair(*request.args) for request in requests])
        results = [(score.log_likelihood, score.greedy) for score in scores]
        for request, result in zip(requests, results, strict=True):
            self.cache_hook.add_partial('loglikelihood', request.args, result)
        return results

    def loglikelihood_rolling(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[float]:
        """Log-likelihood of whole documents, nats; the memory is carried through each of them.

        Unlike lm-eval's own models this one never scores a begin token: those read it twice, and score
        the second, where their tokenizer puts it before every text.
        """
        begin = self.conventions.before()
        scores = self.likelihood([(begin, self._encode(request.args[0])) for request in requests])
        results = [score.log_likelihood for score in scores]
        for request, result in zip(requests, results, strict=True):
            self.cache_hook.add_partial('loglikelihood_rolling', request.args, result)
        return results

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Continues contexts up to a stop text, which is left out, or up to `max_gen_toks` tokens."""
        settings = [_settings(request.args[1]) for request in requests]
        contexts = [self.conventions.read(self._encode(request.args[0])) for request in requests]
        alike: dict[str, list[int]] = {}
        for number, each in enumerate(settings):
            alike.setdefault(repr(each), []).append(number)
        results = [''] * len(requests)
        lanes, batches = self.likelihood.reader.num_lanes, itertools.count()
        for numbers in alike.values():
            # Contexts of like length are read together.
            numbers = sorted(numbers, key=lambda number: -len(contexts[number]))
            for begin in range(0, len(numbers), lanes):
                part = numbers[begin : begin + lanes]
                # A key per batch: tasks ask the same several times to draw several answers.
                key = jax.random.fold_in(jax.random.key(0), next(batches))
                texts = self._write([contexts[number] for number in part], settings[part[0]], key)
                for number, text in zip(part, texts, strict=True):
                    results[number] = text
                    self.cache_hook.add_partial('generate_until', requests[number].args, text)
        return results

    def _write(
        self, contexts: list[np.ndarray], settings: dict[str, Any], key: jax.Array
    ) -> list[str]:
        """Continues at most a batch of contexts."""
        reader, context = self.likelihood.reader, context_of(self.likelihood.reader.model.config)
        if context:
            room = context - settings['max_gen_toks']
            if room < 1:
                raise UsageError(
                    f'max_gen_toks = {settings["max_gen_toks"]}: this model reads {context:,} tokens at '
                    'most, the context included; ask for fewer in generation_kwargs of the task.'
                )
            contexts = [text[-room:] for text in contexts]
        reader.fit(max(map(len, contexts)) + settings['max_gen_toks'])
        full = [num_full(len(context), reader.model.segment_length) for context in contexts]
        states = reader.read([text[:end] for text, end in zip(contexts, full, strict=True)])
        return complete_texts(
            reader,
            states,
            [text[end:] for text, end in zip(contexts, full, strict=True)],
            settings['max_gen_toks'],
            self.tokenizer,
            self.conventions,
            settings['until'],
            temperature=settings['temperature'],
            top_k=settings['top_k'],
            top_p=settings['top_p'],
            keys=jax.random.split(key, reader.num_lanes),
        )


def _settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of `generate_until`, complete.

    Raises:
      UsageError: a setting that this library does not have.
    """
    unknown = sorted(set(given) - set(GENERATION))
    if unknown:
        raise UsageError(
            f'generation_kwargs {", ".join(unknown)}: not known here; allowed are '
            f'{", ".join(GENERATION)}.'
        )
    settings = GENERATION | {name: value for name, value in given.items() if value is not None}
    until = settings['until']
    settings['until'] = (until,) if isinstance(until, str) else tuple(until)
    settings['until'] = tuple(stop for stop in settings['until'] if stop)
    most = settings['max_gen_toks']
    for name, right, needed in (
        ('until', all(isinstance(stop, str) for stop in settings['until']), 'texts'),
        ('max_gen_toks', isinstance(most, int) and most >= 0, 'a whole number of tokens'),
        ('temperature', settings['temperature'] >= 0, 'a number that is not negative'),
    ):
        if not right:
            raise UsageError(f'generation_kwargs {name} = {settings[name]!r}: must be {needed}.')
    if not settings['do_sample']:
        settings['temperature'] = 0.0
    elif not settings['temperature']:
        settings['temperature'] = 1.0
    return settings


def task_manager(tasks: Sequence[str], include_path: str = '', local: bool = False) -> TaskManager:
    """The harness's tasks, and those of a folder.

    Args:
      tasks: names that must be among them.
      include_path: folder with YAML files of tasks; '' = none.
      local: leave out the harness's own tasks, which take seconds to list.

    Raises:
      UsageError: a name that is not known, or none.
    """
    manager = TaskManager(include_path=include_path or None, include_defaults=not local)
    known = sorted(manager.all_tasks)
    unknown = [name for name in tasks if name not in known]
    if unknown or not tasks:
        raise UsageError(
            f'--tasks={",".join(tasks)}: '
            f'{", ".join(unknown) + " is not known" if unknown else "a name is needed"}; there are '
            f'{len(known):,} tasks ({", ".join(known[:8])} ...); --include_path=FOLDER adds YAML files.'
        )
    return manager
