"""A network as a scikit-learn estimator: pipeline, cross-validation, grid search on all cores.

    python examples/sklearn_grid_search.py [--jobs 2] [--dask]

With --dask the search runs on two local workers of dask.distributed; given the address of a
scheduler to Client, the same lines run it on a cluster (pip install 'picodl[dask]').
"""

from __future__ import annotations

import argparse
import contextlib

import joblib
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import picodl
from picodl import layers
from picodl.wrappers import SKLearnClassifier


def build(X, y, units=32, dropout=0.0):
    """A compiled model for these data; scikit-learn searches over the other arguments."""
    picodl.utils.set_random_seed(0)
    model = picodl.Sequential(
        [
            picodl.Input(X.shape[1:]),
            layers.Dense(units, activation="relu"),
            layers.Dropout(dropout),
            layers.Dense(y.shape[1], activation="softmax"),
        ]
    )
    model.compile(picodl.optimizers.AdamW(0.003), loss="categorical_crossentropy")
    return model


def workers(dask: bool):
    """Where joblib runs its jobs: in processes here, or on workers of dask."""
    if not dask:
        return contextlib.nullcontext()
    from dask.distributed import Client

    Client(n_workers=2, threads_per_worker=1, dashboard_address=None)
    return joblib.parallel_config("dask")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--dask", action="store_true")
    options = parser.parse_args()

    (x, y), (x_test, y_test) = picodl.datasets.digits.load_data()
    network = SKLearnClassifier(build, fit_kwargs={"epochs": options.epochs})
    pipeline = make_pipeline(StandardScaler(), network)
    grid = {
        "sklearnclassifier__model_kwargs__units": [16, 64],
        "sklearnclassifier__model_kwargs__dropout": [0.0, 0.3],
    }
    search = GridSearchCV(pipeline, grid, cv=3, n_jobs=options.jobs)
    with workers(options.dask):
        search.fit(x, y)
    results = zip(search.cv_results_["params"], search.cv_results_["mean_test_score"], strict=True)
    for settings, score in results:
        told = ", ".join(f"{key.rsplit('__', 1)[1]}={value}" for key, value in settings.items())
        print(f"{told:28} {score:.1%}")
    linear = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(x, y)
    print(
        f"test accuracy of the best: {search.score(x_test, y_test):.1%}; "
        f"logistic regression: {linear.score(x_test, y_test):.1%}"
    )


if __name__ == "__main__":
    main()
