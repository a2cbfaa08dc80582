// Everything that needs no templates, and main.
#ifndef AICORE_ALL_ENGINE_H
#define AICORE_ALL_ENGINE_H

#include "engine.h"
#include "queue_engine.h"
#include "sync_engine.h"
#include "copy_engine.h"
#include "cube_engine.h"
#include "vector_engine.h"
#include "entry_engine.h"

#endif
