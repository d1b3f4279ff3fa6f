"""An episode as text, as a picture (PNG) and as a film (GIF), with what a memory holds below every step.

Grid worlds are drawn from their map, pixels as they are, and other observations as a row of
shaded cells.
"""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
from PIL import Image, ImageDraw

from longmem_jax.agents.environments import grid
from longmem_jax.agents.environments.interface import Environment, Map
from longmem_jax.files import whole_file

COLOURS = {
    'floor': (244, 241, 232), 'block': (92, 92, 98), 'agent': (28, 28, 30), 'red': (205, 60, 52),
    'blue': (52, 98, 190), 'held': (24, 120, 90), 'paper': (255, 255, 255),
}  # fmt: skip
WIDTH = 960  # pixels that a wide map is made to fit
LARGEST = 32  # pixels per side of a cell, of a small map
LINE = 16  # pixels of a line of text
BAR = 10  # pixels of a row of what is held
GAP = 6


@dataclasses.dataclass(frozen=True)
class Episode:
    """What has happened, step by step, as numpy arrays.

    Attributes:
      states: of the environment, before each action; every leaf [steps, ...].
      observations: what the agent saw then, [steps, ...].
      actions: int [steps].
      rewards: float [steps], of these actions.
      held: float [steps, slots] in [0, 1], how much of what a memory holds, or None.
    """

    states: Any
    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    held: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.actions)

    def state(self, step: int) -> Any:
        """The state before a step."""
        return jax.tree.map(lambda leaf: leaf[step], self.states)


def of_map(world: Map, state: Any) -> np.ndarray:
    """The words that stand in all cells of a map, bool [rows, columns, words]."""
    rows, columns = world.extent(state)
    cells = np.stack(np.meshgrid(np.arange(rows), np.arange(columns), indexing='ij'), -1)
    return np.asarray(world.at(state, cells.astype(np.int32)))


def symbol(words: set[str]) -> str:
    """The letter of a cell: @ agent, # block, R and B red and blue doors, r and b things, . floor."""
    if 'agent' in words:
        return '@'
    if 'block' in words:
        return '#'
    colour = 'r' if 'red' in words else 'b' if 'blue' in words else '.'
    return colour.upper() if 'door' in words else colour


def text(environment: Environment, state: Any, observation: np.ndarray) -> str:
    """A state as lines of letters, or an observation as numbers."""
    if environment.map is None:
        flat = np.asarray(observation).reshape(-1)
        shown = ' '.join(f'{float(value):.4g}' for value in flat[:32])
        return shown + (f' ... ({flat.size} numbers)' if flat.size > 32 else '')
    whole, names = of_map(environment.map, state), np.array(environment.map.words)
    return '\n'.join(''.join(symbol(set(names[cell])) for cell in row) for row in whole)


def caption(environment: Environment, episode: Episode, step: int) -> str:
    """What is done at a step, such as `step 12: left, reward +0.1, room 3`."""
    action = int(episode.actions[step])
    world = environment.map
    parts = [f'step {step}: {grid.ACTIONS[action] if world else f"action {action}"}']
    if episode.rewards[step]:
        parts.append(f'reward {episode.rewards[step]:+.3g}')
    if world:
        seen = of_map(world, episode.state(step)).reshape(-1, len(world.words)).max(axis=0)
        parts += [
            word
            for word, there in zip(world.words, seen, strict=True)
            if there and word.startswith('room')
        ]
    return ', '.join(parts)


def as_text(environment: Environment, episode: Episode) -> str:
    """All steps of an episode, with their captions, as text."""
    steps = []
    for step in range(len(episode)):
        drawn = text(environment, episode.state(step), episode.observations[step])
        steps.append(f'{caption(environment, episode, step)}\n{drawn}')
        if episode.held is not None:
            shades = ' .:-=+*#%@'
            levels = np.clip(np.nan_to_num(episode.held[step]), 0, 1) * (len(shades) - 1)
            steps[-1] += f'\n[{"".join(shades[round(float(level))] for level in levels)}]'
    return '\n\n'.join(steps) + '\n'


def _cell(words: set[str], size: int) -> np.ndarray:
    """A cell as pixels, uint8 [size, size, 3]: doors fill it, things and the agent its middle."""
    pixels = np.full((size, size, 3), COLOURS['floor'], np.uint8)
    colour = 'red' if 'red' in words else 'blue' if 'blue' in words else ''
    middle = slice(size // 4, max(size - size // 4, size // 4 + 1))
    if 'block' in words:
        pixels[:] = COLOURS['block']
    if 'door' in words:
        pixels[:] = COLOURS[colour]
    elif colour:
        pixels[middle, middle] = COLOURS[colour]
    if 'agent' in words:
        pixels[middle, middle] = COLOURS['agent']
    return pixels


def _shades(values: np.ndarray, width: int, height: int) -> np.ndarray:
    """Numbers in [0, 1], [n], as a row of n shades, uint8 [height, width, 3]."""
    place = np.minimum(np.arange(width) * len(values) // width, len(values) - 1)
    level = np.clip(np.nan_to_num(values[place]), 0, 1)[:, None]
    row = np.array(COLOURS['floor']) * (1 - level) + np.array(COLOURS['held']) * level
    return np.broadcast_to(np.round(row).astype(np.uint8), (height, width, 3))


def picture(environment: Environment, state: Any, observation: np.ndarray) -> np.ndarray:
    """A state as pixels, uint8 [height, width, 3]."""
    seen = np.asarray(observation)
    if environment.map is not None:
        whole, names = of_map(environment.map, state), np.array(environment.map.words)
        size = max(2, min(LARGEST, WIDTH // whole.shape[1]))
        rows = [np.hstack([_cell(set(names[cell]), size) for cell in row]) for row in whole]
        return np.vstack(rows)
    if seen.ndim == 3 and seen.shape[-1] == 3:
        scaled = seen if seen.dtype == np.uint8 else np.round(255 * np.clip(seen, 0, 1))
        times = max(1, 256 // seen.shape[1])
        return scaled.astype(np.uint8).repeat(times, 0).repeat(times, 1)
    flat = seen.reshape(-1).astype(np.float32)
    spread = np.ptp(flat)
    levels = flat if 0 <= flat.min() and flat.max() <= 1 else (flat - flat.min()) / max(spread, 1)
    return _shades(levels, max(240, min(WIDTH, LARGEST * len(flat))), LARGEST)


def frame(environment: Environment, episode: Episode, step: int) -> Image.Image:
    """A step with its caption above and what is held below."""
    drawn = picture(environment, episode.state(step), episode.observations[step])
    height, width = drawn.shape[:2]
    reads = episode.held
    held = 0 if reads is None else BAR + GAP
    page = Image.new('RGB', (max(width, 240), LINE + height + held), COLOURS['paper'])
    ImageDraw.Draw(page).text((2, 2), caption(environment, episode, step), COLOURS['agent'])
    page.paste(Image.fromarray(drawn), (0, LINE))
    if reads is not None:
        shades = np.ascontiguousarray(_shades(np.asarray(reads[step]), page.width, BAR))
        page.paste(Image.fromarray(shades), (0, LINE + height + GAP))
    return page


def chosen(episode: Episode, most: int) -> np.ndarray:
    """At most `most` steps, evenly spread, with the first and the last."""
    return np.unique(np.linspace(0, len(episode) - 1, min(most, len(episode))).round().astype(int))


def write_png(path: str | Path, environment: Environment, episode: Episode, most: int = 12) -> None:
    """Writes at most `most` of the steps of an episode, one at least, evenly spread, in a column."""
    frames = _frames(environment, episode, most)
    page = Image.new(
        'RGB', (frames[0].width, sum(each.height + GAP for each in frames)), COLOURS['paper']
    )
    top = 0
    for each in frames:
        page.paste(each, (0, top))
        top += each.height + GAP
    with whole_file(path) as partial:
        page.save(partial, format='PNG')


def write_gif(
    path: str | Path,
    environment: Environment,
    episode: Episode,
    most: int = 500,
    milliseconds: int = 120,
) -> None:
    """Writes an episode as a film, see `write_png`.

    Steps take `milliseconds`, the last one ten times as long.
    """
    frames = _frames(environment, episode, most)
    times = [milliseconds] * (len(frames) - 1) + [10 * milliseconds]
    with whole_file(path) as partial:
        frames[0].save(
            partial, format='GIF', save_all=True, append_images=frames[1:], duration=times, loop=0
        )


def _frames(environment: Environment, episode: Episode, most: int) -> list[Image.Image]:
    """Frames of one size; maps of one episode may differ in theirs."""
    frames = [frame(environment, episode, int(step)) for step in chosen(episode, most)]
    size = max(each.width for each in frames), max(each.height for each in frames)
    return [_padded(each, size) for each in frames]


def _padded(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    """The image on a page of this size."""
    page = Image.new('RGB', size, COLOURS['paper'])
    page.paste(image, (0, 0))
    return page
