"""Fine-tuned MAE: classifiers on the average of the tokens and on [cls]."""

from pathlib import Path

from extract.encoders import load_encoder
from extract.encoders.pretrained import cls_caution, timm_model
from tests.extract.encoders.official import loaded, written
from tests.extract.encoders.published import PUBLISHED

AVERAGED, CLS = 0, 1
FILES = PUBLISHED["mae-ft-s16"]


def test_classifier_decides_the_architecture(tmp_path: Path) -> None:
    for kind, pooling in ((AVERAGED, "avg"), (CLS, "token")):
        file, arguments = FILES[kind].smaller()
        assert f'"global_pool": "{pooling}"' in loaded("mae-ft-s16", written(file), tmp_path, **arguments).architecture


def test_cls_of_a_model_that_was_fine_tuned_through_the_average(tmp_path: Path) -> None:
    (averaged, arguments), (cls, _) = (FILES[kind].smaller() for kind in (AVERAGED, CLS))
    caution = loaded("mae-ft-s16", written(averaged), tmp_path, **arguments).cls_caution
    assert caution.startswith("fine-tuned through the average of its patch tokens, not through [cls]")
    assert loaded("mae-ft-s16", written(cls), tmp_path, **arguments).cls_caution == ""
    assert load_encoder("mae-ft-s16", random_seed=0, arguments=arguments).cls_caution == "", "it was not trained at all"


def test_nothing_is_said_of_cls_where_there_is_none() -> None:
    tiny = {"embed_dim": 32, "depth": 1, "num_heads": 2, "global_pool": "avg", "fc_norm": True}
    with_cls, without = (timm_model("vit_tiny_patch16_224", class_token=has, **tiny) for has in (True, False))
    assert cls_caution(with_cls)
    assert cls_caution(without) == ""
