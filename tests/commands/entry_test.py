"""Files that are not configs."""

import pytest

from configs import quickstart
from longmem_jax.commands import entry
from longmem_jax.errors import UsageError


@pytest.mark.parametrize(
    'text',
    [
        'def get_config(): ...',
        'from configs.quickstart import get_config',
        'from configs.quickstart import *',
        'from configs.quickstart import other as get_config',
        'get_config = other',
        'def get_config(:  # Python tells where',
    ],
)
def test_a_file_may_come_by_get_config_in_any_way(tmp_path, text):
    path = tmp_path / 'config.py'
    path.write_text(text)
    entry._find_config([f'--config={path}:tiny'])


@pytest.mark.parametrize('name, text', [('a.py', 'x = 3'), ('config.json', '{"a": '), ('b.py', '')])
def test_a_file_without_get_config_says_what_a_config_is(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(UsageError, match='has no function get_config; a config is a Python file'):
        entry._find_config([f'--config={path}'])


def test_a_config_is_whole():
    config = quickstart.get_config('tiny')
    entry._require_sections(config)
    del config.mesh
    with pytest.raises(UsageError, match=r'the config has no mesh; .*config.base.base\(\) makes'):
        entry._require_sections(config)
    with pytest.raises(UsageError, match='get_config returned 3; get_config must return'):
        entry._require_sections(3)


def test_a_run_brings_its_own_config(tmp_path):
    config = quickstart.get_config('tiny')
    (tmp_path / 'config.json').write_text(config.to_json())
    found = entry._of_workdir(str(tmp_path))
    assert found.to_dict() == config.to_dict() and found.is_locked
    assert isinstance(found.model.attention, tuple)
    assert entry._of_workdir(str(tmp_path / 'nothing')) is None and entry._of_workdir('') is None
    (tmp_path / 'config.json').write_text('{"model": ')
    with pytest.raises(UsageError, match='not the configuration of a run'):
        entry._of_workdir(str(tmp_path))


@pytest.mark.parametrize('content', ['{"model_type": "gpt2", "n_layer": 2}', '{"model": {}}', '[]'])
def test_the_folder_of_a_host_is_not_a_run(tmp_path, content):
    """It would be a run of defaults, whose training replaces the host's config.json."""
    (tmp_path / 'config.json').write_text(content)
    with pytest.raises(UsageError, match=r'give the workdir of a run\. .*configs/host.py:path='):
        entry._of_workdir(str(tmp_path))
