from fastload.collate import *  # temporary
