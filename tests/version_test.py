"""The version stands in one place, project() of CMakeLists.txt. The program takes it from the generated
header, the Python package from CMakeLists.txt by the expression in pyproject.toml, the newest release of
CHANGELOG.md is this version or an older one, and images in the documents are of the newest release.

    version_test.py SOURCE_DIRECTORY VERSION GENERATED_HEADER
"""
import pathlib
import re
import sys
import tomllib

RELEASE = re.compile(r"^## (.*)$", re.MULTILINE)
NUMBER = re.compile(r"\d+\.\d+\.\d+")
IMAGE = re.compile(r"/outrider:(\d+\.\d+\.\d+)")
# Where a version written by hand would go unnoticed.
PROGRAM = ["src/outrider/**/*.h", "src/outrider/**/*.cc", "src/outrider/**/*.in", "python/**/*.py"]


def key(version):
    return tuple(map(int, version.split(".")))


def errors_in(source, version, header):
    if not NUMBER.fullmatch(version):
        yield f"CMakeLists.txt: VERSION {version} is not of the form 1.2.3"
        return
    if f'kVersion = "{version}"' not in header.read_text():
        yield f"{header}: kVersion is not {version}"

    project = tomllib.loads((source / "pyproject.toml").read_text())
    if "version" in project["project"] or "version" not in project["project"].get("dynamic", []):
        yield 'pyproject.toml: "version" must be dynamic, so that CMakeLists.txt alone says it'
    rule = project["tool"]["scikit-build"]["metadata"]["version"]
    found = re.search(rule["regex"], (source / rule["input"]).read_text())
    if not found or found["value"] != version:
        yield f"pyproject.toml: the expression finds {found and found['value']} in {rule['input']}, not {version}"

    headings = RELEASE.findall((source / "CHANGELOG.md").read_text())
    releases = [h for h in headings if h != "Unreleased"]
    if "Unreleased" in headings[1:]:
        yield 'CHANGELOG.md: "Unreleased" must come first'
    for heading in releases:
        if not NUMBER.match(heading):
            yield f'CHANGELOG.md: "{heading}" is neither Unreleased nor begins with a version'
            return
    numbers = [key(NUMBER.match(h)[0]) for h in releases]
    if numbers != sorted(set(numbers), reverse=True):
        yield "CHANGELOG.md: the newest release must come first, each once"
    if numbers and numbers[0] > key(version):
        yield f"CHANGELOG.md: has a release after {version}, the version of CMakeLists.txt"

    for page in [source / "README.md", *source.glob("docs/*.md"), *source.glob("examples/**/*.*")]:
        for image in IMAGE.findall(page.read_text()):
            if not numbers or key(image) != numbers[0]:
                yield f"{page}: an image of version {image}, which is not CHANGELOG.md's newest"

    for pattern in PROGRAM:
        for file in source.glob(pattern):
            if re.search(rf"\boutrider\W+{re.escape(version)}\b", file.read_text(), re.IGNORECASE):
                yield f"{file}: names version {version}; CMakeLists.txt alone says it"


def main():
    source, version, header = pathlib.Path(sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[3])
    errors = list(errors_in(source, version, header))
    for error in errors:
        print(error)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
