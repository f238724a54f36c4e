"""Data sets to begin with: small ones, most of scikit-learn, and large ones from files.

Each has `load_data()`, which gives (x_train, y_train), (x_test, y_test). The small ones are float32
features with integer labels or float32 targets; the large ones are read from the files that Keras
keeps in ~/.keras/datasets, with Keras's arguments, order and dtypes. Nothing is downloaded unless
`download=True` or `utils.get_file` asks for it, and nothing in the files is unpickled.

>>> (x_train, y_train), (x_test, y_test) = digits.load_data()
>>> x_train.shape, x_test.shape
((1437, 64), (360, 64))
"""

from picodl.datasets.bundled import Bundled, Generated, make_spirals, make_xor
from picodl.datasets.images import FASHION_MNIST, MNIST, Cifar10, Cifar100, Stored, read_idx
from picodl.datasets.tables import BostonHousing, CaliforniaHousing
from picodl.datasets.text import Imdb, Reuters

digits = Bundled("load_digits")
iris = Bundled("load_iris")
wine = Bundled("load_wine")
breast_cancer = Bundled("load_breast_cancer")
diabetes = Bundled("load_diabetes")
moons = Generated("make_moons", noise=0.2)
circles = Generated("make_circles", noise=0.1, factor=0.5)
blobs = Generated("make_blobs", centers=3)
spirals = Generated(make_spirals)
xor = Generated(make_xor)
mnist = Stored("MNIST", "mnist.npz", "mnist", MNIST)
fashion_mnist = Stored("Fashion-MNIST", "fashion-mnist.npz", "fashion-mnist", FASHION_MNIST)
cifar10 = Cifar10()
cifar100 = Cifar100()
imdb = Imdb()
reuters = Reuters()
boston_housing = BostonHousing()
california_housing = CaliforniaHousing()
