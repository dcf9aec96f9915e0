//! API objects to engine to API objects: the Kueue controllers, job integrations, admission checks, webhook logic.
