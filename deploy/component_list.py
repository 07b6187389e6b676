"""Complete a list of components: `python deploy/component_list.py LIST < LIST_WITH_LICENCES`. Standard library only.

LIST is of the lock and has the hashes of each package; the other list is of a venv and has the licences that packages
declare. The page's libraries are in neither: their table is channels/web/page/vendor/README.md.
"""

import json
import re
import sys
from pathlib import Path
from urllib.parse import quote

_VENDORED = Path(__file__).resolve().parents[1] / "channels/web/page/vendor/README.md"
_ROW = re.compile(r"^\| \S+ \| (\S+) \| (\S+) \| \S+ \| (.+?) \(\[text\]\S+ \| `(\w{64})` \|$", re.MULTILINE)


def page_libraries() -> list[dict[str, object]]:
    """Return the page's libraries as components."""
    return [
        {
            "bom-ref": f"page-{name}",
            "hashes": [{"alg": "SHA-256", "content": digest}],
            "licenses": [{"expression": licence.replace(" or ", " OR ")}],
            "name": name,
            "purl": f"pkg:npm/{quote(name)}@{version}",
            "type": "library",
            "version": version,
        }
        for name, version, licence, digest in _ROW.findall(_VENDORED.read_text())
    ]


def key_of(component: dict[str, str]) -> tuple[str, str]:
    """Return a package's name, as locks spell it, and version."""
    return re.sub(r"[-_.]+", "-", component["name"]).lower(), component["version"]


if __name__ == "__main__":
    path = Path(sys.argv[1])
    components = json.loads(path.read_text())
    licences = {key_of(each): each["licenses"] for each in json.load(sys.stdin)["components"] if "licenses" in each}
    for component in components["components"]:
        del component["description"]  # the line of the lock, hashes and all
        if found := licences.get(key_of(component)):
            component["licenses"] = found
    components["components"] += page_libraries()
    path.write_text(json.dumps(components, indent=2, sort_keys=True) + "\n")
