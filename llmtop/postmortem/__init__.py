"""Files of a dead or hung job -> the rank that failed first, with evidence."""
