"""`beyondcls blocks`: what it writes and says."""

from probe.result_files import read_result
from tests.features import write_features


def test_blocks(beyondcls, tmp_path):
    sets = [write_features(tmp_path / side, 96, seed=i, vectors=(0, 1)).path for i, side in enumerate("ab")]
    params = "probe: {epochs: 9, warmup_epochs: 0, batch_size: 32, seeds: [0], block: 7, k_shot: 1}"
    (tmp_path / "params.yaml").write_text(params)
    places = ("--features", sets[0], "--test", sets[1], "--out", tmp_path / "mae", "--device", "cpu")
    shown = beyondcls(
        "blocks", *places, "--params", tmp_path / "params.yaml", "--epochs", "2", "--protocol", "ridge", "--head", "abmilp"
    )
    content = read_result(tmp_path / "mae/metrics.json")
    assert (content["recipe"]["epochs"], content["n_training"], content["seeds"]) == (2, 96, [0])
    assert (tmp_path / "mae/blocks.svg").read_text().count("<svg") == 1
    for row in content["rows"]:
        assert f"{row['head']} of block {row['block']}, {row['protocol']}: {row['top1']['mean']:.2f} ±" in shown
    assert len(content["rows"]) == 9
    assert "\nabmilp,1,linear," in (tmp_path / "mae/blocks.csv").read_text()
    assert "command" in content
    beyondcls("blocks", *places, "--epochs", "1", "--warmup-epochs", "0", "--seeds", "0", "--head", "cls", "--k", "3")
    protocol = read_result(tmp_path / "mae/metrics.json")["protocol"]
    assert (protocol["name"], protocol["ks"], protocol["temperature"]) == ("knn", [3], 0.07)
