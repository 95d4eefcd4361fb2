"""Names of other libraries that these do not promise to keep: one file for each library.

Another version of the library may have changed such a name. Then only a gain is lost, and a warning
says which. So other modules import these names from here, where they use them. A file imports its
library once a name is asked for.
"""
