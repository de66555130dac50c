"""`easgd report`: run folders → `data` → `figures` and `tables` → the page, PNG, PDF and CSV."""
