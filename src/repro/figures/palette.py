"""Palette of Okabe and Ito, which colour-blind readers can tell apart, and a grey.

Source: "Color Universal Design", 2008. Grey marks what a figure does not compare.
"""

BLACK = "#000000"
ORANGE = "#E69F00"
SKY_BLUE = "#56B4E9"
GREEN = "#009E73"
YELLOW = "#F0E442"
BLUE = "#0072B2"
VERMILION = "#D55E00"
PURPLE = "#CC79A7"
GREY = "#999999"
