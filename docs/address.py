"""Links that need the project's address: `url` in `setup.cfg`, empty until there is one.

python docs/address.py --at=v0.2.0 README.md

makes the links of a page absolute, for the package index, which has no folders beside it. They lead to
the files of that tag, or of the branch main.
"""

import argparse
import configparser
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
BADGE = '[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]({link})'


def address() -> str:
    """Such as https://github.com/OWNER/NAME; '' = there is none."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / 'setup.cfg')
    return setup['metadata'].get('url', '').strip().rstrip('/')


def badge(page: str, address: str) -> str:
    """The badge that opens a page of `docs/notebooks` in Colab; '' for other pages and addresses."""
    name = re.fullmatch('notebooks/(.*)', page)
    place = re.fullmatch('https://github.com/(.*)', address)
    if not name or not place:
        return ''
    path = f'{place[1]}/blob/main/experiments/notebooks/{name[1]}.ipynb'
    return BADGE.format(link=f'https://colab.research.google.com/github/{path}')


def absolute(text: str, address: str, at: str = 'main') -> str:
    """A page at the root of the project with links to its files, as pictures or pages, made absolute.

    `at` is the branch or tag whose files they lead to.
    """

    def replaced(match: re.Match[str]) -> str:
        picture, words, target = match.groups()
        if re.match('[a-z]+:|#', target):
            return match[0]
        return f'{picture}[{words}]({address}/{"raw" if picture else "blob"}/{at}/{target})'

    return re.sub(r'(!?)\[([^\]]*)\]\(([^)\s]+)\)', replaced, text)


if __name__ == '__main__':
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--at', default='main', help='the branch or tag that links lead to')
    parser.add_argument('pages', nargs='+', type=Path)
    given = parser.parse_args()
    if not address():
        sys.exit('setup.cfg has no url: enter the address of the project.')
    for page in given.pages:
        page.write_text(absolute(page.read_text(), address(), given.at))
