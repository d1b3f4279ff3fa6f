"""Names and what they stand for, each loaded when it is first used.

A name comes from this library, from `register`, or from an installed package, which lists it in its
metadata as an entry point of one of the `GROUPS`. Our own subjects come in by these entry points too.
"""

import functools
import importlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Callable, ItemsView, Iterator, Mapping, ValuesView
from typing import Any, NamedTuple, TypeVar

from longmem_jax.errors import UsageError, say, unknown
from longmem_jax.subject import Subject

T = TypeVar('T')
OWN = 'longmem-jax'  # the distribution of this library
# What `register` and packages may add, with the group of its entry points.
GROUPS = {
    'memory': 'longmem_jax.memories',
    'task': 'longmem_jax.tasks',
    'source': 'longmem_jax.sources',
    'environment': 'longmem_jax.environments',
    'method': 'longmem_jax.methods',
    'subject': 'longmem_jax.subjects',
}
PREFIX = 'longmem_jax.'
# The modules with the registries that `register` loads to compare names; those of subjects are loaded
# by who uses them.
HOMES = {
    'memory': 'longmem_jax.memory.registry',
    'task': 'longmem_jax.data.tasks.registry',
    'source': 'longmem_jax.data.sources',
}
FREE = {'memory': 'longmem_jax.config.names:require_free'}  # what else has names
_registered: dict[str, dict[str, Any]] = {kind: {} for kind in GROUPS}
_registries: dict[str, 'Registry[Any]'] = {}  # by kind, those that are imported
NEEDED = 'must be letters, digits and _, such as gated_delta'
_said: set[str] = set()  # lines about wrong packages that were printed


def register(kind: str, name: str, value: Any) -> None:
    """Adds a name for this process; a package does it for all by an entry point.

    Args:
      kind: one of `GROUPS`: a 'memory' is a `contract.Entry`; a 'task' a
        `data.tasks.registry.Task`; a 'source' a `data.sources.DataSource`; an 'environment' an
        `agents.environments.registry.Entry`; a 'method' a `lifelong.learner.Method`; a 'subject' a
        `subject.Subject`.
      name: what configs and the command call it.
      value: the object, or 'module:object', which is imported when it is first used.

    Raises:
      UsageError: an unknown kind, a name that is no identifier or is taken, also by a field of
        `config.model`, or an object of another type or name. Names of environments and methods are
        compared when these are loaded, if that is later; then every use of them raises.
    """
    if kind not in GROUPS:
        raise UsageError(unknown('kind', kind, GROUPS))
    if not _is_name(name):
        raise UsageError(f'name = {name!r}: {NEEDED}')
    if kind in HOMES:
        importlib.import_module(HOMES[kind])
    known, registry = _registered[kind].get(name), _registries.get(kind)
    if known is not None and known != value:
        raise UsageError(
            f'{kind} {name!r}: is registered already, and compiled programs may have the first object; '
            'choose another name, or start a new process (in a notebook: restart the kernel)'
        )
    if registry is not None and not isinstance(value, str):
        registry.checked(name, value)
    if registry is not None and known is None and name in registry:
        raise UsageError(_taken(kind, name))
    # Without this package there are no configs, and layers are used alone.
    if kind in FREE and importlib.util.find_spec('ml_collections'):
        load(FREE[kind])(name)
    _registered[kind][name] = value
    _names.cache_clear()


def unregister(kind: str, name: str) -> None:
    """Takes a name away that `register` has added."""
    del _registered[kind][name]
    _names.cache_clear()


def _is_name(name: Any) -> bool:
    return isinstance(name, str) and name.isidentifier()


def _taken(kind: str, name: str) -> str:
    return f'{kind} {name!r}: there is one of that name; choose another name'


def load(target: str) -> Any:
    """The object that 'module:object' names."""
    module, _, name = target.partition(':')
    if not name:
        raise ValueError(f"names no object; write '{module}:ENTRY', or how the object is called")
    return functools.reduce(getattr, name.split('.'), importlib.import_module(module))


class Point(NamedTuple):
    """An entry point of an installed package.

    Not that of `importlib.metadata`: where its backport is imported, as by Sphinx and others, packages
    are found by it, and its entry points are of another class.
    """

    name: str
    value: str
    package: str
    version: str


@functools.cache
def _entry_points() -> dict[str, tuple[Point, ...]]:
    """Entry points of all installed packages by group; those of this library first."""
    found: dict[str, dict[str, Point]] = {}
    for package in importlib.metadata.distributions():
        try:
            if f'[{PREFIX}' not in (package.read_text('entry_points.txt') or ''):
                continue
            owner, version = package.metadata['Name'].replace('_', '-'), package.version
            points = [point for point in package.entry_points if point.group.startswith(PREFIX)]
        except Exception as error:  # of a file that is missing or damaged
            where = getattr(package, '_path', package.locate_file(''))
            _say_once(
                f'Left out: a package whose metadata cannot be read ({where}: {type(error).__name__}: '
                f'{error}); install it again, or delete this folder.'
            )
            continue
        for point in points:
            # The same package may be found twice, in the checkout and where it is installed.
            found.setdefault(point.group, {}).setdefault(
                f'{owner} {point.name}', Point(point.name, point.value, owner, version)
            )
    # Of two packages with one name the same one counts on every machine.
    return {
        group: tuple(sorted(points.values(), key=lambda point: (point.package != OWN, point)))
        for group, points in found.items()
    }


def require_installed() -> None:
    """Raises `UsageError` if the metadata of this library lacks its entry points."""
    points = _entry_points().get(GROUPS['subject'], ())
    if not any(point.package == OWN for point in points):
        raise UsageError(
            'longmem_jax: its installed metadata names no subjects, so it is of an earlier version; run '
            'pip install -e . in the checkout again.'
        )


def foreign() -> dict[str, str]:
    """Names of other packages, each with package and version; those of `register` with ''.

    Without names that are left out, as there is one of that name.
    """
    found: dict[str, str] = {}
    for kind, group in GROUPS.items():
        points, registered = _entry_points().get(group, ()), _registered[kind]
        targets = dict[str, Any]({point.name: point for point in points}) | registered
        if targets and kind in _registries:
            targets = _names(_registries[kind])
        for name, target in targets.items():
            if isinstance(target, Point) and target.package != OWN:
                found[name] = f'{target.package} {target.version}'
            elif name in registered:
                found[name] = ''
    ours: set[str] = set()
    brought: dict[str, str] = {}
    for name, subject in SUBJECTS.items():  # ours first
        names = {*subject.sections, *subject.kinds, *subject.sources} - ours - {*brought}
        if name in found:
            brought |= dict.fromkeys(names, found[name])
        else:
            ours |= names
    return found | brought


class Registry(Mapping[str, T]):
    """A mapping from names to objects of one kind.

    An entry point that cannot be loaded raises `UsageError` where its name is asked for; `values` and
    `items` leave it out and say so once, so that a wrong package stops only those who use it.
    """

    def __init__(
        self,
        word: str,
        of: type[T],
        own: Mapping[str, T | str],
        kind: str = '',
        brought: str = '',
        problem: Callable[[T], str] = lambda value: '',
    ):
        """Loads nothing.

        Args:
          word: what the names are, for messages, such as 'memory' or `config.data.source`.
          own: name to object, or to 'module:object'.
          kind: one of `GROUPS`; '' = packages add nothing here.
          brought: the field of `subject.Subject` by which subjects add names; '' = none.
          problem: what is wrong with an object of the type; '' = nothing.
        """
        self.own, self._word, self._of = dict(own), word, of
        self._kind, self._brought, self._problem = kind, brought, problem
        self._loaded: dict[str, tuple[Any, T]] = {}
        if kind:
            _registries[kind] = self

    # Two registries are the same if they are one object; a `Mapping` would load all to compare them.
    __eq__, __hash__ = object.__eq__, object.__hash__

    def _targets(self) -> dict[str, Any]:
        """Every name, with its object, 'module:object' or entry point."""
        return _names(self)

    def __getitem__(self, name: str) -> T:
        targets = self._targets()
        if name not in targets:
            raise UsageError(unknown(self._word, name, sorted(targets)))
        target, known = targets[name], self._loaded.get(name)
        if known is None or known[0] is not target:
            known = target, self.checked(name, self._load(name, target))
            self._loaded[name] = known
        return known[1]

    def checked(self, name: str, value: Any) -> T:
        """`value`; raises `UsageError` unless it is an object of this kind with that name."""
        if not isinstance(value, self._of):
            raise UsageError(
                f'{self._word} {name!r}: must be of the type {self._of.__module__}.'
                f'{self._of.__qualname__}, not {type(value).__name__}'
            )
        own = getattr(value, 'name', name)
        if own != name:
            raise UsageError(f'{self._word} {name!r}: its name is {own!r}; use one name')
        if problem := self._problem(value):
            raise UsageError(f'{self._word} {name!r}: {problem}')
        return value

    def _load(self, name: str, target: Any) -> Any:
        if not isinstance(target, (str, Point)):
            return target
        value = target if isinstance(target, str) else target.value
        try:
            return load(value)
        except (Exception, SystemExit) as error:
            by_signal = isinstance(error, SystemExit) and type(error) is not SystemExit
            if value.startswith(PREFIX) or by_signal:
                raise
            what, advice = 'it', "correct the name 'module:object' or the module"
            if isinstance(target, Point):
                what = f'the package {target.package}'
                advice = 'update or uninstall it; if it is yours, correct it and install it again'
            raise UsageError(
                f'{self._word} {name!r}: {what} cannot be loaded '
                f'({value}: {type(error).__name__}: {error}); {advice}'
            ) from error

    def __iter__(self) -> Iterator[str]:
        return iter(self._targets())

    def __len__(self) -> int:
        return len(self._targets())

    def __contains__(self, name: object) -> bool:
        return name in self._targets()

    def get(self, name: str, default: Any = None) -> Any:
        """The object of a name, or `default` if there is no such name."""
        return self[name] if name in self else default

    def items(self) -> ItemsView[str, T]:
        """Names and objects; without those of wrong packages."""
        found = {}
        for name in self:
            try:
                found[name] = self[name]
            except UsageError as error:
                _say_once(f'Left out: {error}.')
        return found.items()

    def values(self) -> ValuesView[T]:
        """The objects; without those of wrong packages."""
        return dict(self.items()).values()


class Part(Registry[T]):
    """The objects of a registry that belong to one place."""

    def __init__(self, whole: Registry[T], place: str):
        """`place`: the field of that name that the objects have."""
        super().__init__(f'{place} layer', whole._of, {})
        self._whole, self._place = whole, place

    def _targets(self) -> dict[str, Any]:
        found: dict[str, Any] = dict(self._whole.items())
        return {name: value for name, value in found.items() if value.place == self._place}


@functools.cache
def _names(registry: Registry[Any]) -> dict[str, Any]:
    """The names of a registry: its own, of subjects, of `register`, of packages; the first counts."""
    found = dict(registry.own)
    if registry._brought:
        for subject in SUBJECTS.values():
            found = found | {
                k: v for k, v in dict(getattr(subject, registry._brought)).items() if k not in found
            }
    if not registry._kind:
        return found
    for point in _entry_points().get(GROUPS[registry._kind], ()):
        if point.name in found:
            known = found[point.name]
            of = f', of {known.package}' if isinstance(known, Point) else ''
            problem = f'there is one of that name{of}; choose another name'
        elif not _is_name(point.name):
            problem = NEEDED
        else:
            found[point.name] = point
            continue
        _say_once(f'Left out: {registry._word} {point.name!r} of {point.package}: {problem}.')
    for name, target in list(_registered[registry._kind].items()):
        if name in found:  # `register` came before this registry; nothing of ours is replaced
            raise UsageError(
                f'{_taken(registry._kind, name)} in register, in a new process (in a notebook: restart '
                'the kernel)'
            )
        found[name] = target
    return found


def _say_once(line: str) -> None:
    if line not in _said:
        _said.add(line)
        say(line, sys.stderr)


SUBJECTS = Registry('subject', Subject, {}, 'subject')


def brought(field: str) -> Iterator[Any]:
    """What every subject has in a field, one after another; 'module:object' is loaded."""
    for subject in SUBJECTS.values():
        values = getattr(subject, field)
        for value in (values,) if isinstance(values, str) else values:
            if value:
                yield load(value) if isinstance(value, str) else value
