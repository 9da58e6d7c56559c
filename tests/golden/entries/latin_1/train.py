# -*- coding: latin-1 -*-
# Réglages: la taille du lot
batch_size = 25  # échantillons
épochs = 25
