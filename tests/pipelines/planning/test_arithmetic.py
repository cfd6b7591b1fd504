"""What a project costs, of rates that are given: counted by hand."""

from dataclasses import replace

import pytest

from pipelines.planning.sizes import Sizes, n_learnt, sizes_of
from pipelines.planning.work import RESOURCES, Work, by_stage, total
from tests.pipelines.planning.fabricated import DEEPER, ENCODER, MACHINE, WITHOUT_CLS, project, work

HEADS = {"abmilp": {}}
STUDY = {"study": "s", "dataset": "d", "encoder": "e", "joined": "e"}


class TestExtractions:
    def test_images_times_bytes_and_rates(self) -> None:
        one = work(project(), "extract", "train")
        assert one.written == 1000 * (1000 + 10 + 4 + 6 + 8)
        assert one.seconds == {"decoding": 10, "encoder": 50, "writing": 102.8}
        assert one.elapsed == 102.8  # 100 through the whole extraction: writing takes longer
        assert work(project(replace(MACHINE, written_per_s=1e9)), "extract", "train").elapsed == 100
        assert work(project(), "extract", "test").written == 100 * 1028

    def test_views_are_of_training_images_and_ids_are_of_images(self) -> None:
        views = project(datasets={"d": {"views": 3}})
        one = work(views, "extract", "train")
        assert one.written == 1000 * (3 * 1020 + 8)
        assert one.seconds["encoder"] == 150
        assert work(views, "extract", "test").written == 100 * 1028
        assert work(project(given={"views": 2}), "extract", "test").written == 100 * (2 * 1020 + 8)

    def test_blocks_of_a_study(self) -> None:
        blocks = {"b": {**STUDY, "stored": "0,1", "heads": {"deep": {"aggregator": "abmilp", "blocks": [0, 1]}}}}
        del blocks["b"]["joined"]
        planned = project(block_studies=blocks)
        assert work(planned, "extract-blocks", "train").written == 1000 * 2028
        assert work(planned, "study-blocks", "b").read == 4 * 1100 * 2000

    def test_statistics_are_read_once(self) -> None:
        one = work(project(), "attention", "test")
        assert (one.read, one.looped) == (100 * (4 + 6), 10)  # else the test images are extracted again, at 10 a second
        assert one.elapsed == pytest.approx(0.01)


class TestTraining:
    def test_tokens_are_read_in_every_epoch(self) -> None:
        one = work(project(heads=HEADS), "probe", "abmilp")
        assert one.read == 4 * (1000 + 100) * 1000
        heads = 3 * 4 * (1000 * 0.01 + 100 * 0.002)  # seeds, epochs
        assert one.seconds == pytest.approx({"reading": 44, "heads": heads})
        assert one.elapsed == pytest.approx(heads)
        # 20 images a second through the encoder, which is slower than decoding.
        assert one.looped == pytest.approx(4 * 1100 / 20 + heads)

    def test_reading_may_take_longer_than_the_heads(self) -> None:
        assert work(project(replace(MACHINE, read_per_s=1e3), heads=HEADS), "probe", "abmilp").elapsed == 4400

    def test_features_that_fit_into_memory_are_read_once(self) -> None:
        fits = replace(MACHINE, features_nbytes=1e6)
        assert work(project(fits, heads=HEADS), "probe", "abmilp").read == 1100 * 1000
        # Of four views heads see the three random crops; the test images alone fit.
        views = work(project(fits, heads=HEADS, datasets={"d": {"views": 4}}), "probe", "abmilp")
        assert views.read == 4 * 1000 * 1000 + 100 * 1000
        larger = replace(MACHINE, features_nbytes=3e6)
        assert work(project(larger, heads=HEADS, datasets={"d": {"views": 4}}), "probe", "abmilp").read == 3100 * 1000
        mixed = project(
            larger,
            heads=HEADS,
            datasets={"d": {"views": 4}},
            probe={"epochs": 5, "warmup_epochs": 0, "mix_evaluation_view": True},
        )
        assert work(mixed, "probe", "abmilp").read == 5 * 1000 * 1000 + 100 * 1000

    def test_vectors_without_parameters_are_pooled_once(self) -> None:
        one = work(project(cls_heads={"cls": {}}), "probe-cls", "cls")
        assert one.read == 1100 * 10
        assert one.seconds["heads"] == pytest.approx(1100 * 0.001 + 3 * 4 * (1000 * 0.01 + 100 * 0.002))
        # With the encoder in the loop there are new ones in every epoch.
        assert one.looped == pytest.approx(4 * 1100 / 20 + 4 * 1100 * 0.001 + 122.4)

    def test_vectors_that_do_not_fit_are_pooled_in_every_epoch(self) -> None:
        one = work(project(replace(MACHINE, vectors_nbytes=1100 * 8 * 4 - 1), cls_heads={"cls": {}}), "probe-cls", "cls")
        assert one.read == 4 * 1100 * 10
        assert one.seconds["heads"] == pytest.approx(4 * 1100 * 0.001 + 122.4)

    def test_an_order_for_each_seed_is_a_pass_for_each(self) -> None:
        planned = project(heads={"abmilp": {"order": "own"}})
        one = work(planned, "probe", "abmilp")
        assert one.read == 3 * 4 * 1100 * 1000
        assert one.seconds["heads"] == pytest.approx(122.4)

    def test_settings_are_compared_in_a_pass_of_their_own(self) -> None:
        one = work(project(heads={"abmilp": {"base_lrs": [0.1, 0.2]}}), "probe", "abmilp")
        assert one.read == 4 * 1100 * 1000 + (4 * 900 + 100) * 1000
        assert one.seconds["heads"] == pytest.approx(122.4 + 6 * (4 * 900 * 0.01 + 100 * 0.002))

    def test_heads_of_a_study_share_a_reading(self) -> None:
        heads = {
            "one": {"aggregator": "abmilp"},
            "two": {"aggregator": "abmilp", "depth": 2},
            "map": {"aggregator": "cls-attention"},
        }
        one = work(project(studies={"s": {**STUDY, "heads": heads}}), "study", "s")
        # The two stream patch tokens; the map's vectors are pooled from patch tokens and the map.
        assert one.read == 4 * 1100 * 1000 + 1100 * (1000 + 6)
        assert one.seconds["heads"] == pytest.approx(3 * 122.4 + 1.1)
        apart = {**heads, "two": {**heads["two"], "epochs": 5, "warmup_epochs": 0}}
        again = work(project(studies={"s": {**STUDY, "heads": apart}}), "study", "s")
        assert again.read == one.read + 5 * 1100 * 1000

    def test_attention_of_a_second_encoder(self) -> None:
        slow = replace(ENCODER, rates=replace(ENCODER.rates, encoded_per_s=5.0))
        entry = {**STUDY, "joined": "other", "heads": {"theirs": {"aggregator": "cls-attention", "of": "joined"}}}
        one = work(project(encoders={"e": ENCODER, "other": slow}, studies={"s": entry}), "study", "s")
        assert one.read == 1100 * (1000 + 6)
        assert one.looped == pytest.approx(4 * 1100 * (1 / 20 + 1 / 5) + 4 * 1100 * 0.001 + 122.4)

    def test_protocols_without_gradient_steps_read_once(self) -> None:
        one = work(project(cls_heads={"knn": {"aggregator": "cls", "protocol": "knn"}}), "probe-cls", "knn")
        assert one.seconds == pytest.approx({"reading": 0.11, "heads": 1.1})

    def test_the_encoder_says_how_long_its_heads_train(self) -> None:
        planned = project(heads=HEADS, encoders={"e": ENCODER, "f": DEEPER})
        planned.params["encoders"]["f"] |= {"epochs": 2}
        assert work(planned, "probe", "abmilp", "f").read == work(planned, "probe", "abmilp").read / 2


class TestSubsets:
    sizes = Sizes(1000, 100, 5, False, "counted")

    def test_how_many_images(self, tmp_path) -> None:
        (tmp_path / "list.txt").write_text("a\nb\n\nb\nc")
        counted = [({}, 1000), ({"percent": 2.5}, 25), ({"k_shot": 3}, 15), ({"ids": str(tmp_path / "list.txt")}, 3)]
        for of_run, n in [*counted, ({"ids": "nowhere/imagenet-1pct.txt"}, 12_811), ({"ids": "nowhere/mine.txt"}, None)]:
            assert n_learnt(of_run, self.sizes) == n, of_run

    def test_of_extraction(self) -> None:
        entry = {"form": "imagenet", "train_ids": "imagenet-1pct.txt"}
        sizes, images = sizes_of({"data": "nowhere", "datasets": {"few": entry}}, "few")
        assert (sizes.train, sizes.test, images) == (12_811, 50_000, None)

    def test_they_are_what_is_read(self) -> None:
        study = {**STUDY, "percent": 10, "heads": {"abmilp": {}}}
        assert work(project(studies={"s": {**study, "subset_seed": 0}}), "study", "s").read == 4 * (100 + 100) * 1000
        assert work(project(studies={"s": study}), "study", "s").read == 3 * 4 * (100 + 100) * 1000, "each seed has its own"

    def test_a_list_of_unknown_length_is_not_counted_and_named(self) -> None:
        works, left_out = project(studies={"s": {**STUDY, "ids": "nowhere/mine.txt", "heads": {"abmilp": {}}}}).works()
        assert not [w for w in works if w.stage == "study"]
        assert left_out.unknown == {"s": "nowhere/mine.txt"}


def test_heads_whose_tokens_an_encoder_lacks_are_named() -> None:
    planned = project(encoders={"e": ENCODER, "bare": WITHOUT_CLS}, cls_heads={"cls": {}}, heads=HEADS)
    works, left_out = planned.works()
    assert left_out.absent == {"cls": {"bare"}}
    assert sorted((w.name, w.encoder) for w in works if "probe" in w.stage) == [
        ("abmilp", "bare"),
        ("abmilp", "e"),
        ("cls", "e"),
    ]


class TestTotals:
    works = (
        Work("extract", "train", "e", "d", 10.0, {"decoding": 9.0, "encoder": 4.0}, written=5.0),
        Work("extract", "test", "e", "d", 2.0, {"decoding": 1.0, "encoder": 1.5}, written=1.0),
        Work("probe", "abmilp", "e", "d", 7.0, {"reading": 7.0, "heads": 6.0}, read=3.0, looped=50.0),
    )

    def test_by_stage(self) -> None:
        stages = by_stage(self.works, n_tasks=4)
        assert {name: (one.n, one.elapsed, shared) for name, (one, shared) in stages.items()} == {
            "extract": (2, 12.0, 3.0),  # machines share extractions
            "probe": (1, 7.0, 7.0),
        }
        assert [one.bottleneck for one, _ in stages.values()] == ["decoding", "reading"]

    def test_of_all(self) -> None:
        everything = total(self.works)
        assert (everything.elapsed, everything.written, everything.read, everything.looped) == (19.0, 6.0, 3.0, 50.0)
        assert set(everything.seconds) == set(RESOURCES)
        assert everything.seconds["encoder"] == 5.5


def test_narrower_tokens_and_fewer_views() -> None:
    planned = project(heads=HEADS, datasets={"d": {"views": 3}})
    assert work(planned.narrow(), "extract", "train").written == 1000 * (3 * (1020 - 500 + 12) + 8)
    assert work(planned.narrow(), "probe", "abmilp").read == 4 * 1100 * 512
    assert work(planned.without_crops(), "extract", "train").written == 1000 * 1028


def test_every_work_is_of_a_stage_of_dvc_yaml() -> None:
    heads = {"cls_heads": {"cls": {}}, "heads": HEADS, "own_heads": {"both": {"aggregator": "cls-average"}}}
    blocks = {"b": {"study": "s", "dataset": "d", "encoder": "e", "stored": "0,1", "heads": {"abmilp": {}}}}
    planned = project(**heads, studies={"s": {**STUDY, "heads": HEADS}}, block_studies=blocks)
    works = planned.works()[0]
    assert {w.stage for w in works} == set(by_stage(works))
    assert sum(one.n for one, _ in by_stage(works).values()) == len(works) == 10
