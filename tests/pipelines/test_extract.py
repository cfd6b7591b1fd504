"""`beyondcls extract`: where features are there already, options of images, and images that a function of the user's gives."""

import importlib.metadata
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml

from extract.attention import STATISTICS
from pipelines.code.reader import main as write_reader
from pipelines.parameters.datasets import images_of, is_missing
from pipelines.parameters.params import read_params
from pipelines.planning.sizes import COUNTED, Sizes, all_sizes
from probe.result_files import read_result
from store import BeyondClsError, FeatureStore, environment, open_store
from tests.extract.datasets.deep import png16
from tests.extract.datasets.test_pixels import not_upright
from tests.extract.pictures import samples, write_file, write_pictures, write_tar, write_text
from tests.extract.tiny import TINY
from tests.folders import files

N = 40
ENCODER = {"model": "vit_tiny_patch16_224", "arguments": TINY, "random_seed": 0}
KEPT = "features/a: not computed again, a sample of 32 of its 40 images agrees (at most 0"
Command = Callable[..., str]


def write_params(root: str | None = None, entry: dict | None = None, **of_encoder: object) -> None:
    content = {"data": ".", "datasets": {"data": entry or {}}, "encoders": {"tiny": ENCODER | of_encoder}}
    content |= {"extract": {"shard_rows": 32}, "store": {"root": root}}
    Path("params.yaml").write_text(yaml.safe_dump(content))


@pytest.fixture
def project(tmp_path, monkeypatch) -> Path:
    """A folder with parameters, to run in."""
    monkeypatch.chdir(tmp_path)
    write_params()
    return tmp_path


@pytest.fixture
def data(project) -> None:
    write_tar(project / "data/0.tar", samples(N))


@pytest.fixture
def extract(project, beyondcls) -> Command:
    """Extract `data`, or the data set of this name in params.yaml, with an entry."""

    def extract(*options: object, out: str = "features/a", fails: bool = False, entry: dict | None = None) -> str:
        named = ("--data", "data") if entry is None else ("--dataset", "data")
        if entry is not None:
            write_params(entry=entry)
        given = ("--encoder", "tiny", "--params", "params.yaml", *named, "--out", out)
        return beyondcls("extract", *given, "--receipt", f"receipts/{Path(out).name}.json", *options, fails=fails)

    return extract


@pytest.fixture
def edit(monkeypatch) -> Callable[[], None]:
    """Change the definition of a statistic by a thousandth."""
    before = STATISTICS["cls_self"]
    return lambda: monkeypatch.setitem(STATISTICS, "cls_self", lambda attention: before(attention) + 1e-3)


def check(name: str = "a") -> dict:
    return json.loads(Path(f"receipts/{name}.check.json").read_text())


def test_a_set_that_is_there_stays(data, project, extract):
    extract()
    before, receipt, made = files(project / "features/a"), Path("receipts/a.json").read_bytes(), check()
    assert made["compared"] == [], "it was extracted"
    for options in ((), ("--update",)):
        assert KEPT in extract(*options)
        assert files(project / "features/a") == before
        assert Path("receipts/a.json").read_bytes() == receipt, "what depends on it need not run"
        [compared] = check()["compared"]
        assert (compared["key"], compared["n_sampled"]) == (made["key"], 32)


@pytest.mark.parametrize(("telling_s", "says"), [(0.0, True), (3600.0, False)])
def test_what_binds_is_said_of_a_run_that_took_its_time(telling_s, says, data, extract, monkeypatch):
    monkeypatch.setattr("extract.stages.TELLING_S", telling_s)
    assert bool(re.search(r"[a-z]+ binds: encoder idle \d+ %", extract())) == says
    assert "binds" not in extract(), "nothing was computed"


def test_classes_are_said_and_can_be_named_later(data, project, extract):
    assert "classes: 3 without names, first 0, last 2; 1 has the fewest images, 13, 0 the most, 14" in extract()
    made = FeatureStore.open("features/a")
    Path("names.txt").write_text("owl\ncat\ndog\n")
    out = extract("--update", "--classes", "names.txt")
    assert "classes: 3, first owl, last dog; cat has the fewest images, 13, owl the most, 14" in out
    assert KEPT in out
    named = FeatureStore.open("features/a")
    assert (named.attributes["classes"], named.spec.key) == (["owl", "cat", "dog"], made.spec.key)


def test_another_version_of_torch_and_a_package_that_is_gone(data, extract, monkeypatch):
    extract()
    assert check()["versions"]["timm"] == importlib.metadata.version("timm")
    versions = {"torch": "99.0", "timm": None}
    monkeypatch.setattr(environment, "version", lambda name: versions.get(name, "1.0"))
    assert KEPT in extract("--update")
    assert (check()["versions"]["torch"], check()["device"]) == ("99.0", "cpu")


def test_an_edit_of_a_statistic_stops_or_is_computed_again(data, project, extract, edit):
    """By the option, or by the parameter of an encoder."""
    extract()
    shutil.copytree("features/a", "features/b")
    before, made = files(project / "features/a"), check()
    edit()
    err = extract("--update", fails=True)
    assert "a sample of 32 of its 40 images differs in 1 of" in err
    assert "--recompute, or recompute: true under that encoder in the parameter file" in err
    assert files(project / "features/a") == before
    assert check() == made
    assert "it is extracted again" in extract("--update", "--recompute")
    assert check()["compared"] == []
    assert "not computed again" in extract("--recompute"), "it agrees now"
    write_params(recompute=True)
    assert "it is extracted again" in extract("--update", out="features/b")
    assert files(project / "features/a") == files(project / "features/b")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--extend --update", "--update and --extend exclude each other"),
        ("--repair --from x", "--repair computes what is damaged again, from the images; leave out --from"),
        ("--on-error skip", "--on-error is 'skip', expected raise or record"),
        ("--blocks last", "--blocks is 'last', expected integers"),
        ("--scale 5", "the lower one first"),
        ("--orientation upright", "unknown orientation 'upright'"),
        ("--max-pixels 100", "it has 36 x 40 pixels, more than --max-pixels 100"),
        ({"allow_left_out": "yes"}, "datasets.data.allow_left_out is"),
        ({"allow_outside": 1}, "datasets.data.allow_outside is"),
        ("", "encoders.tiny.recompute is 3, expected true or false"),
    ],
    ids=str,
)
def test_values_that_cannot_be(options, message, data, extract):
    write_params(**({} if options else {"recompute": 3}))
    in_file = isinstance(options, dict)
    assert message in extract(*([] if in_file else options.split()), entry=options if in_file else None, fails=True)


def test_the_family_of_weights_is_that_of_params_yaml_or_of_the_command(data, extract):
    write_params(family="untrained")
    extract()
    attributes = FeatureStore.open("features/a").attributes
    assert (attributes["family"], attributes["random_seed"]) == ("untrained", 0)
    assert "tiny has random weights (seed 0), but its family is 'labels'" in extract("--family", "labels", fails=True)


def test_from_another_set(data, project, extract):
    extract("--blocks", "0,1")
    assert "with --extend, or let this one take its place with --update" in extract("--blocks", "0", fails=True)
    assert KEPT in extract("--from", "features/a", out="features/b")
    assert check("b")["compared"][0]["key"] == check("a")["key"] != check("b")["key"]
    extract(out="features/c")
    assert files(project / "features/b") == files(project / "features/c")
    err = extract("--from", "features/a", "--dtype", "int8", out="features/d", fails=True)
    assert "features/a cannot be taken over from: dtype differ" in err


def test_the_set_that_a_stub_names_is_used_and_a_stub_gives_way(data, project, extract, tmp_path_factory):
    """Another set of the same encoder follows it at a shared root; the old one stays for others."""
    root = tmp_path_factory.mktemp("root")
    write_params(str(root))
    extract("--blocks", "0")
    assert "not computed again, a sample of 32" in extract("--blocks", "0,1", "--update")
    assert len(list(root.glob("a-*"))) == 2
    new = next(path for path in root.glob("a-*") if (path / "patch/block1").exists())
    write_params()  # where there is no root any more
    extract("--blocks", "0,1", out="features/b")
    assert files(new) == files(project / "features/b")
    assert "is a stub" in extract(fails=True)
    extract("--update")
    assert FeatureStore.open("features/a").kinds


def test_images_of_a_list(data, extract, project):
    """The command's key is that of the same images by themselves."""
    (project / "ids.txt").write_text("0033\n0004.png\n")
    extract("--ids", "ids.txt")
    write_tar(project / "alone.tar", [samples(N)[i] for i in (4, 33)])
    extract("--data", "alone.tar", out="features/b")
    stores = [FeatureStore.open(project / "features" / name) for name in "ab"]
    assert stores[0].ids == ["0004", "0033"]
    assert stores[0].spec.key == stores[1].spec.key
    (project / "ids.txt").write_text("0033\n0099\n")
    assert "1 of 2 ids are not in data, first '0099'" in extract("--ids", "ids.txt", out="features/c", fails=True)


def test_what_is_left_out_is_said_and_too_much_is_an_error(project, extract):
    write_pictures(project / "data", "cat/0.jpg", "dog/0.jpg")
    assert "note" not in extract().replace("taken at its word", ""), "of a sound set nothing"
    write_file(project / "data/cat/notes.txt", b"x")
    assert "2 images of data are taken; left out: files that are no images: 1 (e.g. cat/notes.txt)" in extract()
    (project / "data/dog/1.jpg").symlink_to("nowhere")
    assert "dog/1.jpg" in (said := extract(fails=True))
    assert "--allow-left-out" in said
    assert "links to images that are not there: 1 (e.g. dog/1.jpg)" in extract(entry={"allow_left_out": True})
    assert len(FeatureStore.open("features/a")) == 2


def test_a_list_of_ones_own(project, extract):
    write_pictures(project, "far/0.jpg")
    source = write_text(project / "data/d.csv", "id,path,label", f"0,{project}/far/0.jpg,0")
    assert "--allow-outside" in extract("--data", source, fails=True)
    assert "1 images of" in extract("--data", source, "--allow-outside")


def test_scaled_and_turned_pixels(project, extract):
    write_file(project / "data/cat/0.png", png16(np.random.default_rng(0).integers(0, 4096, (40, 36))))
    assert "--scale 0,65535" in extract(fails=True)
    write_file(project / "data/dog/1.jpg", not_upright(6))
    assert "--orientation exif turns them" in extract("--scale", "0,4095")
    keys = {FeatureStore.open("features/a").spec.key}
    options = ("--scale", "0,4095", "--orientation", "exif")
    for given, entry in ((options, {}), ((), {"scale": [0, 4095], "orientation": "exif"})):
        extract("--update", *given, entry=entry)
        store = FeatureStore.open("features/a")
        assert store.array("images/size").all().tolist() == [[40, 36], [48, 32]]
        keys.add(store.spec.key)
    assert len(keys) == 2


FUNCTION, ENTRY = "data/own.py:make", {"function": "own.py:make", "data_arguments": {"n": 70}, "test": "validation"}
CODE = """
import numpy as np
from torch.utils.data import Dataset

class Shades(Dataset):
    classes = ["dark", "bright"]

    def __init__(self, n, seed):
        self.n, self.seed = n, seed

    def __len__(self):
        return self.n

    def __getitem__(self, row):
        noise = np.random.default_rng(1000 * self.seed + row).integers(0, 100, (32, 32, 3), np.uint8)
        return noise + np.uint8(100 * (row % 2)), row % 2

def make(split, n):
    return Shades(n, {"train": 1, "validation": 2}[split])
"""


@pytest.fixture
def own(project) -> Path:
    """The file of a function that gives images."""
    write_params(entry=ENTRY)
    return write_file(project / "data/own.py", CODE.encode())


def test_from_a_function_to_a_probe(own, project, extract, beyondcls):
    """Processes call the function again: its class is in a file that they cannot import by name."""
    assert "classes: 2, first dark, last bright; 35 images each" in extract("--split", "train", entry=ENTRY)
    extract("--split", "train", "--on", "processes", "--tasks", "2", out="features/b", entry=ENTRY)
    assert files(project / "features/a") == files(project / "features/b")
    extract("--split", "test", out="features/test", entry=ENTRY)
    sets = ("--features", "features/a", "--test", "features/test", "--out", "probes/a", "--device", "cpu")
    beyondcls("probe", *sets, "--head", "average", "--epochs", "5", "--warmup-epochs", "0")
    assert read_result(project / "probes/a/metrics.json")["top1"]["mean"] == pytest.approx(100), "shades are easy"


def test_a_function_by_name_on_the_command_line(own, extract):
    given = ("--data", FUNCTION, "--split", "train")
    assert "data/own.py:make fails" in extract(*given, fails=True)
    extract(*given, "--data-argument", "n=3")
    store = open_store("features/a")
    assert (len(store), store.attributes["classes"]) == (3, ["dark", "bright"])


def test_the_entry_of_a_function(own, project):
    params = read_params(project / "params.yaml")
    of_test = {"data": f"./{FUNCTION}", "data_arguments": {"n": 70}, "split": "validation"}
    assert images_of(params, "data", "test") == of_test
    assert all_sizes(params)[0]["data"] == Sizes(70, 70, 2, False, COUNTED)
    params["datasets"]["data"] = {"function": "own.images:make", "data_arguments": ["n=3"]}
    with pytest.raises(BeyondClsError, match=r"datasets\.data\.data_arguments is \['n=3'\], expected names and values"):
        images_of(params, "data", "test")
    del params["datasets"]["data"]["data_arguments"]
    assert images_of(params, "data", None) == {"data": "own.images:make"}
    places = {"data": False, FUNCTION: False, "other.py:make": True, "own.images:make": False, "s3://b": False}
    assert {place: is_missing(place) for place in places} == places


def test_the_code_of_a_function_and_what_that_imports_has_digests(own, project):
    write_text(project / "readers/function.json", '{"extract/datasets/objects.py": "0"}')
    write_text(project / "heads/shading.py", "STEP = 100")
    own.write_text("from heads.shading import STEP\n" + CODE)

    def digests() -> dict[str, str]:
        write_reader("data", project / "out.json", project / "params.yaml", project / "readers")
        return json.loads((project / "out.json").read_text())["readers"]["function"]

    before = digests()
    assert before.keys() == {"extract/datasets/objects.py", "data/own.py", "heads/shading.py"}
    write_text(project / "heads/shading.py", "STEP = 101")
    assert {name for name, digest in digests().items() if digest != before[name]} == {"heads/shading.py"}
