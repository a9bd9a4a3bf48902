"""WebShop: buy the product that an instruction describes, by search and clicks (Yao et al. 2022, arXiv 2207.01206)."""
