"""tau2-bench, domains retail and airline: an agent serves a simulated customer by tools on a database."""
